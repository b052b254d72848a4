#include "core/device/allocation_table.h"

#include <bit>
#include <iterator>
#include <string_view>
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
  return absl::InvalidArgumentError(
      absl::StrCat("use ", Describe(pointer), ": this process has no allocated or imported memory of ", bytes,
                   " bytes at this address; pass a range inside an allocation"));
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
          ? ": no allocation of this process begins at this address; pass an address that Allocate returned"
          : ": no imported memory begins at this address; pass an address that OpenIpc returned"));
}

bool LockedHostTable::Add(std::byte* base, uint64_t bytes, HostAccess access) {
  absl::MutexLock lock(&mutex_);
  return ranges_.try_emplace(base, Range{.bytes = bytes, .access = access}).second;
}

bool LockedHostTable::Remove(std::byte* base) {
  absl::MutexLock lock(&mutex_);
  return ranges_.erase(base) > 0;
}

std::span<std::byte> LockedHostTable::Find(const void* begin, uint64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  auto after = ranges_.upper_bound(static_cast<std::byte*>(const_cast<void*>(begin)));
  if (after == ranges_.begin()) return {};
  const auto& [base, range] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(begin) - base);
  const bool holds = offset <= range.bytes && bytes <= range.bytes - offset;
  if (!holds || range.access != HostAccess::kReadWrite) return {};
  return {base, range.bytes};
}

absl::Status CheckChanges(int device, std::span<const ElementChanges> blocks, const LockedHostTable& locked) {
  const auto refuse = [device](std::string_view cause, std::string_view remedy) {
    return absl::InvalidArgumentError(
        absl::StrCat("change elements on device ", device, ": ", cause, "; ", remedy));
  };
  for (const ElementChanges& block : blocks) {
    if (block.begin.device != device) {
      return refuse("a block is memory of another device", "use a stream of that device");
    }
    if (!std::has_single_bit(block.width) || block.width > sizeof(uint64_t)) {
      return refuse(absl::StrCat("an element has ", block.width, " bytes"),
                    "pass elements of 1, 2, 4 or 8 bytes");
    }
    if (block.elements > ElementChanges::kMaxElements) {
      return refuse(absl::StrCat("a block has ", block.elements, " elements"),
                    absl::StrCat("pass at most ", ElementChanges::kMaxElements, " elements in a block"));
    }
    const bool values = block.kind == ElementChanges::Kind::kValues;
    const auto operands = reinterpret_cast<uintptr_t>(block.operands);
    const auto places = reinterpret_cast<uintptr_t>(block.places.data());
    // To a GPU such an address is a fault that breaks its context.
    if (block.begin.address % block.width != 0 || (values && operands % block.width != 0) ||
        places % sizeof(uint16_t) != 0) {
      return refuse("an address is not a multiple of the size of the elements there", "align the address");
    }
    if (block.places.empty()) continue;
    const uint64_t operand_bytes = block.places.size() * (values ? block.width : 1);
    if (locked.Find(block.places.data(), block.places.size_bytes()).empty() ||
        locked.Find(block.operands, operand_bytes).empty()) {
      return refuse("places or operands are not in page-locked host memory", "register that memory first");
    }
  }
  return absl::OkStatus();
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
                                                   ": a range is in memory of device ", range.begin.device,
                                                   "; use a stream of the range's device"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
