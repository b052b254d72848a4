// Checks every second that the peer's certificate has not expired and that its name is not denied.
//
// Only the owner thread of its task queue uses a PeerWatch.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/task_queue.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {

class PeerWatch {
 public:
  // Calls `on_refused` with the reason after each check that fails. `on_refused` may call Stop. `queue` must
  // outlive this object.
  PeerWatch(TaskQueue* queue, std::function<void(const absl::Status&)> on_refused)
      : queue_(queue), on_refused_(std::move(on_refused)) {}
  // REQUIRES: stopped.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Checks soon, and then every second. Does nothing for a stream without certificates. `stream` must exist
  // until Stop.
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
