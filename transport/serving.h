// Parts of the source's side of every lane: the secret id of a pull, a counter of the served bytes, and
// threads for reading images that are not in place.
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

// The secret id of one pull: 128 random bits, which a source hands to one receiver.
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
  // `bytes` requested bytes will not be sent: the receiver cancelled the request or is gone, or the request
  // failed.
  void DropRequested(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // `bytes` bytes of the image were sent. `requested`: how many of these bytes AddRequest has added and
  // DropRequested has not removed. It may be less than `bytes`: bytes of a dropped request may still be under
  // way, and a receiver that reads the source's memory makes no request.
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

// The threads on which a source reads images that are not in place. ServedImage::Read may block there: it
// reads a disk, or waits for a staging buffer. A blocked thread delays only other reads. Thread-safe.
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
