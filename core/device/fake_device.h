// The fake backend: N devices of a given size, with shared memory as theirs, so that other processes can open
// it as they would CUDA IPC handles. A test double for hardware: streams run asynchronously and in order on a
// thread of their own, and addresses mean nothing to the host. Memory that is given
// back while a copy still uses it is reported (FAILED_PRECONDITION), which real devices would not do.
//
// The devices of all processes of a host carry the same UUIDs and share no budget: each process counts its
// own.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// What a test puts between the fake devices and their work (core/device/testing has faults). Thread-safe.
class FakeDeviceHooks {
 public:
  virtual ~FakeDeviceHooks() = default;
  // An error is that of the allocation.
  virtual absl::Status BeforeAllocation() = 0;
  // On the thread of the copy's stream, which it may hold up. An error is that of the copy.
  virtual absl::Status BeforeCopy(int device) = 0;
  // An error, always the same one from then on: the device is broken for this process.
  virtual absl::Status CheckHealth(int device) = 0;
};

// Declared here and defined in no product: a test's own build of a program defines it, and every fake runtime
// that is made there without hooks has these. So a test meets a daemon that is another process with nothing
// in the daemon that a user could switch on.
[[gnu::weak]] std::shared_ptr<FakeDeviceHooks> HooksOfThisProgram();

struct FakeDeviceOptions {
  int device_count = 1;
  uint64_t device_bytes = uint64_t{1} << 30;
  std::shared_ptr<FakeDeviceHooks> hooks;  // may be null
};

// INVALID_ARGUMENT for less than 1 or more than 64 devices, or devices without memory.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateFakeRuntime(const FakeDeviceOptions& options);

}  // namespace tensorcast
