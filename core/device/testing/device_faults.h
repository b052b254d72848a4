// Faults of the fake devices, switched by a test while they run. The fake itself has none: it asks
// FakeDeviceHooks, and these are one.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/device/fake_device.h"

namespace tensorcast {

// Counts run down: N means "the next N fail". Switched on and off at any time.
struct FakeDeviceFaults {
  std::atomic<int> fail_allocations{0};
  std::atomic<int> fail_copies{0};
  // Added to each copy; lowering it also frees a copy that waits already.
  std::atomic<int64_t> copy_delay_ns{0};
  std::atomic<int> delayed_copies{0};  // how many wait now; not for tests to set
};

// For FakeDeviceOptions::hooks.
std::shared_ptr<FakeDeviceHooks> HooksOf(std::shared_ptr<FakeDeviceFaults> faults);

// The faults that live in this file, in shared memory: whoever else opens it switches them too. This is how a
// test reaches the fake devices of a daemon that is another process. Makes the file (no faults) where there
// is none.
// A program that was built with them (tests/e2e/device_faults_hooks.cc) finds the file's name in the
// environment variable.
inline constexpr char kDeviceFaultsVariable[] = "TENSORCAST_TEST_DEVICE_FAULTS";
absl::StatusOr<std::shared_ptr<FakeDeviceFaults>> OpenFakeDeviceFaults(const std::string& path);

}  // namespace tensorcast
