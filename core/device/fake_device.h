// The fake backend, a test double for hardware. Device memory is shared memory, which other processes can
// open through an IpcHandle. Each stream has its own thread. Freeing memory that a copy still uses fails
// with FAILED_PRECONDITION; real devices do not detect this error.
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

// Hooks with which a test delays the work of devices or makes the work fail (core/device/testing has some).
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

// The hooks of a fake runtime if FakeDeviceOptions::hooks is null. Only programs that are built for tests
// define this function, so the product's daemon has no switch for faults.
[[gnu::weak]] std::shared_ptr<FakeDeviceHooks> HooksOfThisProgram();

struct FakeDeviceOptions {
  int device_count = 1;
  uint64_t device_bytes = uint64_t{1} << 30;
  std::shared_ptr<FakeDeviceHooks> hooks;  // may be null
};

// INVALID_ARGUMENT for fewer than 1 or more than 64 devices, or devices without memory.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateFakeRuntime(const FakeDeviceOptions& options);

}  // namespace tensorcast
