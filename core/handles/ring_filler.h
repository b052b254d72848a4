// The client's end of a put's ring (put_ring.h): asks the daemon for a ring, and fills the slots it requests.
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

// Holds the connection, and with it the ring, until the put is done. Thread-compatible.
class RingFiller {
 public:
  // Writes image bytes from `image_offset` on to `to`, on thread `thread` of those that fill.
  using Fill = std::function<absl::Status(int thread, uint64_t image_offset, HostSpan to)>;

  // Waits until the deadline for a ring, since the daemon gives out only as many as it has room for. The
  // cancellation ends the wait with UNAVAILABLE. `handed`: parts of the image that the daemon can read from
  // handed-over memory, max kMaxHandedMemories memories and kMaxHandedParts parts (codec.h); it may request
  // them all the same. INVALID_ARGUMENT if that memory is not sealed as needed.
  static absl::StatusOr<std::unique_ptr<RingFiller>> Open(const std::string& socket_path,
                                                          uint64_t image_bytes, SteadyTime deadline,
                                                          const Cancellation& cancellation = {},
                                                          std::span<const HandedMemory> handed = {});
  // As Stop.
  ~RingFiller();
  RingFiller(const RingFiller&) = delete;
  RingFiller& operator=(const RingFiller&) = delete;

  const std::string& token() const { return token_; }  // names the ring in PutArtifact
  HostSpan slots() const;                              // all of them, side by side

  // Starts up to `threads` threads that fill slots. An error of `fill` is kept and ends the filling;
  // `on_failed` is then called once, on one of the threads. RESOURCE_EXHAUSTED if no thread can be started.
  // To be called once.
  absl::Status Start(int threads, Fill fill, std::function<void()> on_failed);
  // Waits for the threads, and returns the error of `fill`. Idempotent.
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
  std::vector<uint32_t> taken_ ABSL_GUARDED_BY(mutex_);  // of each slot, the last request that a thread took
  uint32_t turn_ ABSL_GUARDED_BY(mutex_) = 0;            // the slot to look at first
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
