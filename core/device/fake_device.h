// The fake backend, a test double for hardware: N devices of a given size. Their memory is shared memory, so
// that other processes can open it as they open CUDA IPC handles. Each stream runs asynchronously and in
// order on its own thread. The host cannot dereference device addresses. Freeing memory that a copy still
// uses fails with FAILED_PRECONDITION; real devices would not detect this error.
//
// All processes of a host see devices with the same UUIDs. Each process counts only its own allocations
// against a device's size.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Hooks with which a test delays the devices' work or makes it fail (core/device/testing has some).
// Implementations must be thread-safe.
class FakeDeviceHooks {
 public:
  virtual ~FakeDeviceHooks() = default;
  // Called before each allocation. An error fails the allocation.
  virtual absl::Status BeforeAllocation() = 0;
  // Called before each copy and each call of Change, on the stream's thread. The hook may block this thread.
  // An error fails the copy or the change.
  virtual absl::Status BeforeCopy(int device) = 0;
  // Called after each changed block, on the stream's thread. `block` is the block's memory, which a test may
  // overwrite.
  virtual void AfterChange(void* /*block*/) {}
  // An error means that the device is broken for this process; all later calls must return the same error.
  virtual absl::Status CheckHealth(int device) = 0;
};

// Only a program that is built for a test defines this function. There, every fake runtime that is created
// without hooks uses these hooks. So a test can inject faults into a daemon in another process, while the
// product's daemon has no switch for faults.
[[gnu::weak]] std::shared_ptr<FakeDeviceHooks> HooksOfThisProgram();

struct FakeDeviceOptions {
  int device_count = 1;
  uint64_t device_bytes = uint64_t{1} << 30;
  std::shared_ptr<FakeDeviceHooks> hooks;  // may be null
};

// INVALID_ARGUMENT for fewer than 1 or more than 64 devices, or devices without memory.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateFakeRuntime(const FakeDeviceOptions& options);

}  // namespace tensorcast
