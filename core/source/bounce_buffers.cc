#include "core/source/bounce_buffers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

}  // namespace

void FreeDeleter::operator()(std::byte* buffer) const { std::free(buffer); }

AlignedBuffer AllocateAligned(uint64_t bytes) {
  // Huge pages for a large buffer spare the processor's address cache; a block is what direct reads need.
  const uint64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kBlockBytes;
  // aligned_alloc takes whole multiples of the alignment.
  const uint64_t size = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, size);
  CHECK(memory != nullptr) << "out of memory for a buffer of " << bytes << " bytes";
  if (alignment == kHugePageBytes) madvise(memory, size, MADV_HUGEPAGE);  // a failure costs speed
  return AlignedBuffer(static_cast<std::byte*>(memory));
}

AlignedBuffer BounceBuffers::Take() {
  {
    absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      AlignedBuffer buffer = std::move(free_.back());
      free_.pop_back();
      return buffer;
    }
  }
  // Without the lock: the system may have to make huge pages.
  return AllocateAligned(buffer_bytes_);
}

void BounceBuffers::Give(AlignedBuffer buffer) {
  if (buffer == nullptr) return;
  absl::MutexLock lock(&mutex_);
  // What a burst of fetches needed more is given back to the system.
  if (free_.size() < static_cast<size_t>(keep_)) free_.push_back(std::move(buffer));
}

}  // namespace tensorcast
