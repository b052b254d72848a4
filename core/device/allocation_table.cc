#include "core/device/allocation_table.h"

#include <iterator>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tensorcast {
namespace {

std::string Describe(DevicePtr pointer) {
  return absl::StrFormat("address 0x%x of device %d", pointer.address, pointer.device);
}

}  // namespace

void AllocationTable::Add(DeviceAllocation allocation) {
  absl::MutexLock lock(&mutex_);
  const uint64_t address = allocation.base.address;
  // One table serves all devices: in a process no two devices have the same address.
  CHECK(allocations_.emplace(address, std::move(allocation)).second) << "an address was handed out twice";
}

absl::StatusOr<DeviceAllocation> AllocationTable::Find(DevicePtr pointer, uint64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  // The last allocation that begins at or before the address is the only one that can hold it. Offsets are
  // compared, not ends, which could overflow.
  auto after = allocations_.upper_bound(pointer.address);
  if (after != allocations_.begin()) {
    const DeviceAllocation& candidate = std::prev(after)->second;
    const uint64_t offset = pointer.address - candidate.base.address;
    if (candidate.base.device == pointer.device && offset <= candidate.bytes &&
        bytes <= candidate.bytes - offset) {
      return candidate;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("use ", Describe(pointer),
                                                 ": no allocation or import of this process holds ", bytes,
                                                 " bytes there; pass a range inside one"));
}

absl::StatusOr<DeviceAllocation> AllocationTable::FindBase(DevicePtr base, MemoryOrigin origin) const {
  absl::MutexLock lock(&mutex_);
  return FindBaseLocked(base, origin);
}

absl::StatusOr<DeviceAllocation> AllocationTable::Remove(DevicePtr base, MemoryOrigin origin) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<DeviceAllocation> found = FindBaseLocked(base, origin);
  if (found.ok()) allocations_.erase(base.address);
  return found;
}

std::vector<DeviceAllocation> AllocationTable::RemoveAll() {
  absl::MutexLock lock(&mutex_);
  std::vector<DeviceAllocation> all;
  for (auto& [address, allocation] : allocations_) all.push_back(std::move(allocation));
  allocations_.clear();
  return all;
}

absl::StatusOr<DeviceAllocation> AllocationTable::FindBaseLocked(DevicePtr base, MemoryOrigin origin) const {
  // Base and origin both have to fit: imported memory is not to be freed, nor an allocation to be closed.
  const auto found = allocations_.find(base.address);
  if (found != allocations_.end() && found->second.base == base && found->second.origin == origin) {
    return found->second;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "use ", Describe(base),
      origin == MemoryOrigin::kAllocated
          ? ": no allocation of this process begins there; pass an address that Allocate returned"
          : ": no imported memory begins there; pass an address that OpenIpc returned"));
}

absl::Status CheckDigests(int device, std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) {
  if (ranges.size() != digests.size()) {
    return absl::InvalidArgumentError(absl::StrCat("digest ", ranges.size(), " ranges: there is room for ",
                                                   digests.size(),
                                                   " digests; pass room for one digest of each range"));
  }
  for (const DeviceRange& range : ranges) {
    if (range.begin.device == device) continue;
    return absl::InvalidArgumentError(absl::StrCat("digest on device ", device,
                                                   ": a range is memory of device ", range.begin.device,
                                                   "; use a stream of that device"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
