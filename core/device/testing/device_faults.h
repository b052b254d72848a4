// Faults that a test injects into test doubles of devices while they run. The fake backend reads them through
// its hooks (fault_hooks.h); the stand-in for the CUDA runtime reads them directly.
//
// Thread-safe, also between processes that share the faults through a file.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast {

enum class CopyDirection : uint8_t { kToDevice, kToHost, kOnDevice };
inline constexpr size_t kCopyDirections = 3;

// All fields may be changed at any time. Zero means that there is no fault. A count N means that the next N
// operations fail; each failure lowers it by one.
struct DeviceFaults {
  std::atomic<int> fail_allocations{0};
  std::atomic<int> fail_copies{0};  // of the fake also changes of elements (Stream::Change)
  // Each of the next N copies breaks its device for its process, until the process ends.
  std::atomic<int> poison_copies{0};
  // The time that each copy waits before it begins. A lower value also releases copies that wait already.
  std::atomic<int64_t> copy_delay_ns{0};
  std::atomic<int> delayed_copies{0};  // copies that wait now; tests only read it
  // Only in the stand-in: no device is a peer of another. It has no effect in a process that has already
  // asked whether they are.
  std::atomic<bool> no_peers{false};
  // Only in the stand-in: the speed of each device's copies in each direction; 0: without a limit.
  std::array<std::atomic<uint64_t>, kCopyDirections> bytes_per_second{};

  // For the test doubles of devices. True: this operation must fail. The count is lowered.
  bool TakeAllocationFault();
  bool TakeCopyFault();
  bool TakePoison();
  // Waits until the delay has passed. Reads copy_delay_ns again and again, so that a test can hold a copy and
  // release it later.
  void AwaitDelay();
};

// Maps the faults that are in this file, which is made without faults if it does not exist. All processes
// that map the file share its faults, so a test can switch faults in the devices of a daemon. The daemon
// finds the name of the file in this environment variable.
inline constexpr char kDeviceFaultsVariable[] = "TENSORCAST_TEST_DEVICE_FAULTS";
absl::StatusOr<std::shared_ptr<DeviceFaults>> OpenDeviceFaults(const std::string& path);

}  // namespace tensorcast
