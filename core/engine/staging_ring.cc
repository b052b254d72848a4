#include "core/engine/staging_ring.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), buffer_(std::exchange(other.buffer_, nullptr)) {}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    ring_ = std::exchange(other.ring_, nullptr);
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

StagingBuffer::~StagingBuffer() { Reset(); }

void StagingBuffer::Reset() {
  if (StagingRing* ring = std::exchange(ring_, nullptr); ring != nullptr) ring->GiveBack(buffer_);
}

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(HostPool* pool, int buffers,
                                                                 uint64_t buffer_bytes,
                                                                 NumaNodes numa_nodes) {
  std::set<int> distinct;
  for (const auto& [device, node] : numa_nodes) distinct.insert(node);
  const std::vector<int> nodes(distinct.begin(), distinct.end());
  std::unique_ptr<StagingRing> ring(new StagingRing(buffer_bytes, std::move(numa_nodes)));
  for (int i = 0; i < buffers; ++i) {
    absl::StatusOr<HostAllocation> memory = pool->Allocate(buffer_bytes);
    if (!memory.ok()) {
      return Annotate(memory.status(),
                      absl::StrCat(buffers, " staging buffers of ", buffer_bytes,
                                   " bytes do not fit in the host pool; enlarge it or take fewer"));
    }
    ring->buffers_.push_back({.memory = *std::move(memory), .numa_node = std::nullopt});
    if (nodes.empty()) continue;
    StagingBuffer::Buffer& buffer = ring->buffers_.back();
    buffer.numa_node = nodes[i % nodes.size()];
    // Whole granules: a buffer shares none with anybody.
    for (const ImageExtent& piece : buffer.memory.extents()) {
      const absl::Status near =
          PreferNumaNode(*buffer.numa_node, {pool->base() + piece.extent.offset, piece.extent.bytes});
      LOG_IF_EVERY_N_SEC(WARNING, !near.ok(), 60) << "staging buffers are of any NUMA node: " << near;
    }
  }
  absl::MutexLock lock(&ring->mutex_);
  // Only when all are there: `free_` points into `buffers_`, which grows no more.
  for (const StagingBuffer::Buffer& buffer : ring->buffers_) ring->free_.push_back(&buffer);
  return ring;
}

std::optional<int> StagingRing::NumaNodeOf(int device) const {
  const auto found = numa_nodes_.find(device);
  return found == numa_nodes_.end() ? std::nullopt : std::optional(found->second);
}

absl::StatusOr<StagingBuffer> StagingRing::Acquire(const RequestContext& context, std::optional<int> device) {
  // Taking the lock is what makes a waiter look at its condition again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto may_go_on = [this, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !free_.empty() || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(context.deadline));
  TC_RETURN_IF_ERROR(context.Check("waiting for a staging buffer"));
  if (free_.empty()) {
    return absl::DeadlineExceededError("waiting for a staging buffer: none became free in time");
  }
  constexpr int kAny = -1;
  const int node = (device.has_value() ? NumaNodeOf(*device) : std::nullopt).value_or(kAny);
  // The last one that came back may be in a cache yet.
  auto chosen = std::find_if(free_.rbegin(), free_.rend(),
                             [&](const auto* buffer) { return buffer->numa_node.value_or(kAny) == node; });
  if (chosen == free_.rend()) chosen = free_.rbegin();
  const StagingBuffer::Buffer* buffer = *chosen;
  free_.erase(std::next(chosen).base());
  return StagingBuffer(this, buffer);
}

void StagingRing::GiveBack(const StagingBuffer::Buffer* buffer) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(buffer);
}

}  // namespace tensorcast
