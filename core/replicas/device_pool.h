// The device memory of this node's GPU replicas, under a byte budget for each device. Each replica has its
// own allocation of whole 2 MiB granules, so that an IPC handle exposes only that replica.
//
// Thread-safe. Never waits and never evicts; evicting_allocator.h does both.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class DevicePool;

// Owns one allocation and frees it when destroyed. Must not outlive its pool. Movable.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept;
  DeviceBlock& operator=(DeviceBlock&& other) noexcept;
  ~DeviceBlock();

  DevicePtr pointer() const { return pointer_; }
  uint64_t bytes() const { return bytes_; }  // the allocated bytes, in whole granules

 private:
  friend class DevicePool;
  DeviceBlock(DevicePool* pool, DevicePtr pointer, uint64_t bytes)
      : pool_(pool), pointer_(pointer), bytes_(bytes) {}
  void Reset();

  DevicePool* pool_ = nullptr;
  DevicePtr pointer_;
  uint64_t bytes_ = 0;
};

class DevicePool {
 public:
  // `budget_bytes` is the budget of each device; 0 stands for 90 % of the device's memory. `devices` must
  // outlive the pool.
  DevicePool(DeviceRuntime* devices, uint64_t budget_bytes);
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  int device_count() const;
  // INVALID_ARGUMENT for a device that this node does not have, FAILED_PRECONDITION for an unhealthy device.
  absl::Status CheckDevice(int device) const;

  // Allocates at least one granule. RESOURCE_EXHAUSTED if the budget or device is full; else as CheckDevice.
  absl::StatusOr<DeviceBlock> Allocate(int device, uint64_t bytes);
  // The bytes of the budget that Allocate(device, bytes) takes: whole granules.
  static uint64_t BytesFor(uint64_t bytes);
  // All zero for a device that this node does not have.
  PoolStats stats(int device) const;

 private:
  friend class DeviceBlock;
  absl::Status Reserve(int device, uint64_t bytes);
  void Release(int device, uint64_t bytes, bool failed);
  void Free(DevicePtr pointer, uint64_t bytes);

  DeviceRuntime* const devices_;
  mutable absl::Mutex mutex_;
  std::vector<PoolStats> stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
