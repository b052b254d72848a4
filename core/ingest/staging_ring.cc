#include "core/ingest/staging_ring.h"

#include <string_view>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), memory_(std::exchange(other.memory_, nullptr)) {}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    ring_ = std::exchange(other.ring_, nullptr);
    memory_ = std::exchange(other.memory_, nullptr);
  }
  return *this;
}

StagingBuffer::~StagingBuffer() { Reset(); }

void StagingBuffer::Reset() {
  if (StagingRing* ring = std::exchange(ring_, nullptr); ring != nullptr) ring->GiveBack(memory_);
}

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(HostPool* pool, int buffers,
                                                                 uint64_t buffer_bytes,
                                                                 const NumaNodes& numa_nodes) {
  absl::StatusOr<StagingMemory> memory = StagingMemory::Create(pool, buffers, buffer_bytes, numa_nodes);
  if (!memory.ok()) {
    // Without the pool's own remedy, behind the ';': at a start there is nothing to evict.
    const std::string_view cause = memory.status().message();
    return absl::Status(memory.status().code(),
                        absl::StrCat("make ", buffers, " staging buffers of ", buffer_bytes,
                                     " bytes: ", cause.substr(0, cause.find(';')),
                                     "; raise daemon.host_pool, or lower daemon.staging_buffers"));
  }
  return absl::WrapUnique(new StagingRing(buffer_bytes, *std::move(memory)));
}

absl::StatusOr<StagingBuffer> StagingRing::Acquire(const RequestContext& context, std::optional<int> device) {
  // Taking the lock is what makes a waiter look at its condition again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto may_go_on = [this, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return memory_.has_free() || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(context.deadline));
  TC_RETURN_IF_ERROR(context.Check("wait for a staging buffer"));
  if (!memory_.has_free()) {
    return absl::DeadlineExceededError(
        "wait for a staging buffer: no buffer became free in time; allow more time, or raise "
        "daemon.staging_buffers");
  }
  return StagingBuffer(this, memory_.Take(device));
}

void StagingRing::GiveBack(const HostAllocation* memory) {
  absl::MutexLock lock(&mutex_);
  memory_.GiveBack(memory);
}

}  // namespace tensorcast
