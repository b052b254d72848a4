// Looks every second whether the other end of a connection would still be let in: while bytes move its
// certificate can end, and its name be denied.
//
// For the owner thread of the queue alone.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/task_queue.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {

class PeerWatch {
 public:
  // `on_refused` is told why, each time that the peer is looked at and not good any more; it may Stop. The
  // queue must outlive this.
  PeerWatch(TaskQueue* queue, std::function<void(const absl::Status&)> on_refused)
      : queue_(queue), on_refused_(std::move(on_refused)) {}
  // REQUIRES: stopped.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Looks soon, and then every second. A stream without certificates is not looked at. It must live to Stop.
  void Start(const ByteStream* stream);
  // Idempotent.
  void Stop();

 private:
  void LookAt(SteadyTime when);

  TaskQueue* const queue_;
  const std::function<void(const absl::Status&)> on_refused_;
  const ByteStream* stream_ = nullptr;  // null: stopped
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;
};

}  // namespace tensorcast::transport::tcp
