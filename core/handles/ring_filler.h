// The client's end of a put's ring (put_ring.h): asks the daemon for a ring, and fills the slots that the
// daemon requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"
#include "core/handles/ring_memory.h"
#include "core/memory/host_pool.h"
#include "core/memory/reserved_range.h"

namespace tensorcast {

class ClientChannel;  // the connection (client_channel.h)

// The connection and the ring live as long as this object: destroy it after the put. Thread-compatible.
class RingFiller {
 public:
  // Fills `to` with the image bytes from `image_offset` on. `thread` is the calling thread's number, from 0.
  using Fill = std::function<absl::Status(int thread, uint64_t image_offset, HostSpan to)>;

  // Blocks until the daemon has room for a ring, at most until the deadline. The cancellation ends the wait
  // with UNAVAILABLE. `handed` lists the parts of the image that the daemon can read in sealed memory or in
  // its own replicas: at most kMaxHandedMemories memories, and at most kMaxHandedParts parts in total. The
  // daemon may still request these parts. INVALID_ARGUMENT if a memory lacks a seal.
  static absl::StatusOr<std::unique_ptr<RingFiller>> Open(const std::string& socket_path,
                                                          uint64_t image_bytes, SteadyTime deadline,
                                                          const Cancellation& cancellation = {},
                                                          std::span<const HandedMemory> handed = {});
  // Calls Stop.
  ~RingFiller();
  RingFiller(const RingFiller&) = delete;
  RingFiller& operator=(const RingFiller&) = delete;

  const std::string& token() const { return token_; }  // names the ring in PutArtifact
  HostSpan slots() const;                              // the memory of all slots, contiguous

  // Starts up to `threads` threads. The first error of `fill`, or an invalid request, ends the filling and
  // calls `on_failed` once, on such a thread. RESOURCE_EXHAUSTED if no thread can be started. Call it once.
  absl::Status Start(int threads, Fill fill, std::function<void()> on_failed);
  // Ends the filling, waits for the threads, and returns the first error, or OK. Idempotent.
  absl::Status Stop();

 private:
  struct Task {
    uint32_t slot = 0;
    uint32_t sequence = 0;
    uint64_t image_offset = 0;
    uint32_t bytes = 0;
  };

  RingFiller(std::unique_ptr<ClientChannel> channel, std::string token, RingShape shape, uint64_t image_bytes,
             ReservedRange mapping);
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(mapping_.base()); }
  std::optional<Task> TakeTask();
  absl::Status Check(const Task& task) const;
  void Work(int thread);
  void Fail(const absl::Status& why);

  const std::unique_ptr<ClientChannel> channel_;
  const std::string token_;
  const RingShape shape_;
  const uint64_t image_bytes_;
  const ReservedRange mapping_;
  Fill fill_;
  std::function<void()> on_failed_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  std::vector<uint32_t> taken_ ABSL_GUARDED_BY(mutex_);  // by slot: the last request that a thread took
  uint32_t turn_ ABSL_GUARDED_BY(mutex_) = 0;            // the slot to try first
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
