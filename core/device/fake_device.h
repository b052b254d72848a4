// The fake backend: N devices of a given size whose memory is shared memory, so that other processes can open
// it as they would CUDA IPC handles. A test double for hardware: streams run asynchronously and in order on a
// thread of their own, addresses mean nothing to the host, and faults can be injected. Memory that is given
// back while a copy still uses it is reported (FAILED_PRECONDITION), which real devices would not do.
//
// The devices of all processes of a host carry the same UUIDs and share no budget: each process counts its
// own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Faults that tests switch on and off at any time. Counts run down: N means "the next N fail".
struct FakeDeviceFaults {
  std::atomic<int> fail_allocations{0};
  std::atomic<int> fail_copies{0};
  // Added to each copy; lowering it also frees a copy that waits already.
  std::atomic<int64_t> copy_delay_ns{0};
  std::atomic<int> delayed_copies{0};  // how many wait now; not for tests to set
};

// The faults that live in this file, in shared memory: whoever else opens it switches them too. This is how a
// test reaches the fake devices of a daemon that is another process. Makes the file (no faults) where there
// is none.
absl::StatusOr<std::shared_ptr<FakeDeviceFaults>> OpenFakeDeviceFaults(const std::string& path);

struct FakeDeviceOptions {
  int device_count = 1;
  uint64_t device_bytes = uint64_t{1} << 30;
  std::shared_ptr<FakeDeviceFaults> faults;  // may be null
};

// INVALID_ARGUMENT for less than 1 or more than 64 devices, or devices without memory.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateFakeRuntime(const FakeDeviceOptions& options);

}  // namespace tensorcast
