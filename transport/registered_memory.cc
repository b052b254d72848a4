#include "transport/registered_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/replica/availability.h"

namespace tensorcast::transport {
namespace {

bool Holds(const std::byte* base, uint64_t bytes, ConstHostSpan span) {
  // Pointers into different objects: std::less_equal orders them, < need not.
  const std::less_equal<const std::byte*> not_after;
  return not_after(base, span.data()) && not_after(span.data(), base + bytes) &&
         span.size() <= static_cast<uint64_t>(base + bytes - span.data());
}

}  // namespace

absl::Status RegisteredMemory::CheckNew(const std::byte* base, uint64_t bytes) const {
  if (base == nullptr || bytes == 0) {
    return absl::InvalidArgumentError("register memory: the range has no bytes; register the pool");
  }
  for (const Region& region : regions_) {
    // Regions never overlap, so an address belongs to one of them. A region without users is a free place.
    if (region.users > 0 && base < region.base + region.bytes && region.base < base + bytes) {
      return absl::InvalidArgumentError(
          "register memory: the range is registered already; register each pool once");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> RegisteredMemory::Add(const std::byte* base, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  TC_RETURN_IF_ERROR(CheckNew(base, bytes));
  regions_.push_back({.base = base, .bytes = bytes});
  return regions_.size() - 1;
}

absl::StatusOr<RegisteredMemory::AddedDevice> RegisteredMemory::AddDevice(DevicePtr base, uint64_t bytes) {
  const HostSpan added = AddressesOf(base, bytes);
  absl::MutexLock lock(&mutex_);
  size_t free = regions_.size();
  for (size_t i = 0; i < regions_.size(); ++i) {
    Region& region = regions_[i];
    // A place that a region left is used again, so that the list does not grow with each replica that moves.
    if (region.users == 0) {
      free = i;
    } else if (region.base == added.data() && region.bytes == bytes) {
      ++region.users;
      return AddedDevice{.region = i, .is_new = false};
    }
  }
  TC_RETURN_IF_ERROR(CheckNew(added.data(), bytes));
  if (free == regions_.size()) regions_.emplace_back();
  regions_[free] = {.base = added.data(), .bytes = bytes, .device = base.device};
  return AddedDevice{.region = free, .is_new = true};
}

bool RegisteredMemory::RemoveDevice(size_t region) {
  absl::MutexLock lock(&mutex_);
  // The last user's caller also takes back what its lane did with the memory.
  return --regions_[region].users == 0;
}

// A span has to lie in one region whole: two regions that touch each other may have different keys at the
// network library.
std::optional<size_t> RegisteredMemory::RegionOf(ConstHostSpan bytes) const {
  // An empty span touches no memory: any region will do.
  if (bytes.empty()) return 0;
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].users > 0 && Holds(regions_[i].base, regions_[i].bytes, bytes)) return i;
  }
  return std::nullopt;
}

// The region cannot go between the two locks: the caller's fetch or serving is one of its users.
DevicePtr RegisteredMemory::DeviceAt(ConstHostSpan bytes) const {
  const std::optional<size_t> region = RegionOf(bytes);
  if (bytes.empty() || !region.has_value()) return {};
  absl::MutexLock lock(&mutex_);
  return {.device = regions_[*region].device, .address = reinterpret_cast<uint64_t>(bytes.data())};
}

// Before any lane touches memory: destinations outside what was registered, and offsets outside the image,
// end here. Compared without sums that could overflow.
absl::StatusOr<uint64_t> CheckFetch(const RegisteredMemory& memory, uint64_t image_bytes, uint64_t offset,
                                    const std::vector<HostSpan>& destination) {
  uint64_t bytes = 0;
  for (const HostSpan& span : destination) {
    if (!memory.RegionOf(span).has_value()) {
      return absl::InvalidArgumentError(
          "start a fetch: the destination is not inside one region of registered memory; register its "
          "region");
    }
    bytes += span.size();
  }
  if (offset > image_bytes || bytes > image_bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("fetch ", bytes, " bytes at offset ", offset,
                                                   ": the image has ", image_bytes,
                                                   " bytes; fetch a range of the image"));
  }
  return bytes;
}

absl::Status CheckSegments(const RegisteredMemory& memory, uint64_t image_bytes,
                           const std::vector<ConstHostSpan>& segments) {
  uint64_t bytes = 0;
  for (const ConstHostSpan& segment : segments) {
    if (!memory.RegionOf(segment).has_value()) {
      return absl::FailedPreconditionError(
          "serve an image: the image is not in registered memory; register the pool of the image");
    }
    bytes += segment.size();
  }
  if (bytes != image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("serve an image: the image has ", image_bytes,
                                                   " bytes, and its segments together have ", bytes,
                                                   " bytes; report this defect of the daemon"));
  }
  return absl::OkStatus();
}

absl::Status CheckInPlace(const RegisteredMemory& memory, const ServedImage& image) {
  // What is not in place is copied to registered memory before it is sent.
  if (!image.in_place()) return absl::OkStatus();
  // While an image fills not all of its segments are there to be checked: it is taken at its word.
  if (const auto availability = image.availability(); availability != nullptr && !availability->complete()) {
    return absl::OkStatus();
  }
  return CheckSegments(memory, image.image_bytes(), image.Segments(0, image.image_bytes()));
}

std::vector<ConstHostSpan> SliceSegments(const std::vector<ConstHostSpan>& segments, uint64_t offset,
                                         uint64_t bytes) {
  std::vector<ConstHostSpan> slices;
  for (const ConstHostSpan& segment : segments) {
    if (bytes == 0) break;
    if (offset >= segment.size()) {
      // The segment lies before what is wanted.
      offset -= segment.size();
      continue;
    }
    const uint64_t take = std::min<uint64_t>(bytes, segment.size() - offset);
    slices.push_back(segment.subspan(offset, take));
    bytes -= take;
    offset = 0;
  }
  return slices;
}

}  // namespace tensorcast::transport
