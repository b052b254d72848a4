// Faults that a test injects into test doubles of devices while they run. The fake backend asks for them
// through its hooks (fault_hooks.h); the stand-in for the CUDA runtime asks directly.
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

// Zero is not a fault. Counts run down: N means "the next N fail". Switched on and off at any time.
struct DeviceFaults {
  std::atomic<int> fail_allocations{0};
  std::atomic<int> fail_copies{0};
  // The next copy breaks the device for its process, until that ends.
  std::atomic<int> poison_copies{0};
  // Added to each copy; lowering it also frees a copy that waits already.
  std::atomic<int64_t> copy_delay_ns{0};
  std::atomic<int> delayed_copies{0};  // how many wait now; not for tests to set
  // Of the stand-in alone: no device is another's peer, for processes that have not asked yet.
  std::atomic<bool> no_peers{false};
  // Of the stand-in alone: how fast each device copies in each direction; 0: as fast as it can.
  std::array<std::atomic<uint64_t>, kCopyDirections> bytes_per_second{};

  // For the test doubles of devices. True: this allocation is to fail.
  bool TakeAllocationFault();
  bool TakeCopyFault();
  bool TakePoison();
  // Waits the delay out. It is read again and again, so that a test can hold a copy up and let it go.
  void AwaitDelay();
};

// The faults that live in this file, in shared memory: each process that opens it switches them too. So a
// test reaches the devices of a daemon that is another process, which finds the file's name in the
// environment variable. Makes the file (no faults) where there is none.
inline constexpr char kDeviceFaultsVariable[] = "TENSORCAST_TEST_DEVICE_FAULTS";
absl::StatusOr<std::shared_ptr<DeviceFaults>> OpenDeviceFaults(const std::string& path);

}  // namespace tensorcast
