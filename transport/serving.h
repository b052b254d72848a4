// Code that the sources of all lanes share: pull ids, a counter of served bytes, and threads that read
// images.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "base/busy_time.h"
#include "transport/transport.h"

namespace tensorcast::transport {

// The secret id of one pull: 128 random bits. A source gives the id to one receiver.
using PullId = std::array<uint8_t, 16>;

// A new id from the system's random source.
PullId NewPullId();

inline std::string_view AsBytes(const PullId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

// REQUIRES: bytes.size() == 16.
PullId PullIdFromBytes(std::string_view bytes);

// Counts the ServeStats of one serving. Thread-safe.
class ServeCounter {
 public:
  // A receiver has requested `bytes` bytes of the image.
  void AddRequest(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // `bytes` requested bytes will not be sent: the request was cancelled or failed, or the receiver is gone.
  void DropRequested(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // `bytes` bytes of the image were sent. `requested`: how many of the sent bytes were counted by AddRequest
  // and not removed by DropRequested.
  void AddBytes(uint64_t bytes, uint64_t requested) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReceiverTrace(const TraceContext& trace) ABSL_LOCKS_EXCLUDED(mutex_);
  ServeStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Settle(uint64_t bytes, SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  ServeStats stats_ ABSL_GUARDED_BY(mutex_);        // all fields except `asked`
  uint64_t requested_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes that are neither sent nor dropped
  BusyTime asked_ ABSL_GUARDED_BY(mutex_);          // runs while requested_ > 0
};

// The threads on which a source calls ServedImage::Read, which may block. Thread-safe.
class ServingThreads {
 public:
  // REQUIRES: threads >= 1.
  explicit ServingThreads(int threads);
  // Runs all submitted tasks, then joins the threads.
  ~ServingThreads();
  ServingThreads(const ServingThreads&) = delete;
  ServingThreads& operator=(const ServingThreads&) = delete;

  void Submit(absl::AnyInvocable<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WorkOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !tasks_.empty(); }

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tensorcast::transport
