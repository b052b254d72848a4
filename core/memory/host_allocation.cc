#include "core/memory/host_allocation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/log/check.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

HostAllocation::HostAllocation(HostPool* pool, uint64_t bytes, std::vector<ImageExtent> extents)
    : pool_(pool), bytes_(bytes), extents_(std::move(extents)) {}

HostAllocation::HostAllocation(HostAllocation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      extents_(std::exchange(other.extents_, {})) {}

HostAllocation& HostAllocation::operator=(HostAllocation&& other) noexcept {
  if (this != &other) {
    HostAllocation old(std::move(*this));
    pool_ = std::exchange(other.pool_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    extents_ = std::exchange(other.extents_, {});
  }
  return *this;
}

HostAllocation::~HostAllocation() {
  if (pool_ != nullptr) pool_->Release(extents_);
}

bool HostAllocation::Covers(uint64_t offset, uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return false;
  const uint64_t end = offset + bytes;
  for (auto at = ExtentAt(extents_, offset); offset < end; ++at) {
    if (at == extents_.end() || at->image_offset > offset) return false;
    offset = ImageEnd(*at);
  }
  return true;
}

std::vector<HostSpan> HostAllocation::Spans(uint64_t offset, uint64_t bytes) const {
  CHECK(offset <= bytes_ && bytes <= bytes_ - offset)
      << "bytes " << offset << " + " << bytes << " of an allocation of " << bytes_;
  std::vector<HostSpan> spans;
  const uint64_t end = offset + bytes;
  for (auto at = ExtentAt(extents_, offset); offset < end; ++at) {
    CHECK(at != extents_.end() && at->image_offset <= offset)
        << "byte " << offset << " of an allocation of " << bytes_ << " has no memory";
    const uint64_t skip = offset - at->image_offset;
    const uint64_t here = std::min(end - offset, at->extent.bytes - skip);
    spans.emplace_back(pool_->base() + at->extent.offset + skip, here);
    offset += here;
  }
  return spans;
}

uint64_t HostAllocation::MissingBytes(std::span<const ByteRange> ranges) const {
  return CountOf(Missing(GranulesOf(bytes_, ranges), extents_)) * kGranuleBytes;
}

HostAllocation HostAllocation::Only(std::span<const ByteRange> ranges) const {
  const std::vector<GranuleRange> wanted = GranulesOf(bytes_, ranges);
  if (pool_ == nullptr) return {};
  std::vector<ImageExtent> kept;
  for (const GranuleRange& range : wanted) {
    const uint64_t begin = range.first * kGranuleBytes;
    const uint64_t end = begin + range.count * kGranuleBytes;
    for (auto at = ExtentAt(extents_, begin); at != extents_.end() && at->image_offset < end; ++at) {
      const uint64_t first = std::max(begin, at->image_offset);
      kept.push_back(
          {first, {at->extent.offset + (first - at->image_offset), std::min(end, ImageEnd(*at)) - first}});
    }
  }
  return pool_->Share(bytes_, std::move(kept));
}

uint64_t GranuleBytes(std::span<const ByteRange> ranges) {
  return CountOf(GranulesOf(std::numeric_limits<uint64_t>::max(), ranges)) * kGranuleBytes;
}

}  // namespace tensorcast
