// Tables of the memory that a runtime may use: page-locked host memory, device memory that the runtime
// allocated, and device memory of other processes that the runtime opened. Both backends check against these
// tables every device address, and every host address that a kernel reads. A wrong address is an error and
// never reaches the hardware. Private to this folder. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

class FakeMemory;

enum class MemoryOrigin { kAllocated, kImported };

struct DeviceAllocation {
  DevicePtr base;
  uint64_t bytes = 0;
  MemoryOrigin origin = MemoryOrigin::kAllocated;
  std::shared_ptr<FakeMemory> fake;  // null for real devices
};

class AllocationTable {
 public:
  void Add(DeviceAllocation allocation);

  // The allocation that holds all of [pointer, pointer + bytes), or INVALID_ARGUMENT.
  absl::StatusOr<DeviceAllocation> Find(DevicePtr pointer, uint64_t bytes) const;
  // The allocation of this origin that begins at `base`, or INVALID_ARGUMENT.
  absl::StatusOr<DeviceAllocation> FindBase(DevicePtr base, MemoryOrigin origin) const;
  // Removes the allocation that FindBase finds. Errors as FindBase.
  absl::StatusOr<DeviceAllocation> Remove(DevicePtr base, MemoryOrigin origin);
  std::vector<DeviceAllocation> RemoveAll();

 private:
  absl::StatusOr<DeviceAllocation> FindBaseLocked(DevicePtr base, MemoryOrigin origin) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // By address, which is unique over all devices of a process.
  std::map<uint64_t, DeviceAllocation> allocations_ ABSL_GUARDED_BY(mutex_);
};

class LockedHostTable {
 public:
  // False if a range that begins at `base` is there already.
  bool Add(std::byte* base, uint64_t bytes, HostAccess access);
  // False if no range begins at `base`.
  bool Remove(std::byte* base);
  // The kReadWrite range that holds all of [begin, begin + bytes); empty if none holds all.
  std::span<std::byte> Find(const void* begin, uint64_t bytes) const;

 private:
  struct Range {
    uint64_t bytes = 0;
    HostAccess access = HostAccess::kReadWrite;
  };

  mutable absl::Mutex mutex_;
  std::map<std::byte*, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

// Makes the checks of Stream::Change for blocks on this device (INVALID_ARGUMENT), but does not check that
// the device memory of the blocks exists.
absl::Status CheckChanges(int device, std::span<const ElementChanges> blocks, const LockedHostTable& locked);

// INVALID_ARGUMENT unless all ranges are on this device and `digests` has an element for each.
absl::Status CheckDigests(int device, std::span<const DeviceRange> ranges, std::span<DigestBytes> digests);

}  // namespace tensorcast
