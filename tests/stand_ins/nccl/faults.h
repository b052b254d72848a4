// Faults of the stand-in for NCCL, switched by a test while they run: a file that the test and its processes
// map, which the environment variable names.
//
// Thread-safe, and safe between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::stand_ins {

// Zero is not a fault. The others are sets of ranks: that of bit r is the next of rank r's, whichever
// communicator it is in, and is switched off when it strikes.
struct NcclFaults {
  std::atomic<int> version{0};  // what the library says it is

  std::atomic<uint64_t> hang_join{0};  // until it is aborted
  // In the middle of a broadcast:
  std::atomic<uint64_t> die{0};         // the process is killed
  std::atomic<uint64_t> hang{0};        // until it is aborted
  std::atomic<uint64_t> late_error{0};  // an error that no call returns: it has to be asked for

  std::atomic<uint64_t> hanging{0};  // the ranks that hang now, a bit each; not for tests to set

  static bool Take(std::atomic<uint64_t>& fault, int rank) {
    const uint64_t bit = uint64_t{1} << rank;
    return (fault.fetch_and(~bit) & bit) != 0;
  }
};

inline constexpr char kNcclFaultsVariable[] = "TENSORCAST_TEST_NCCL_FAULTS";
absl::StatusOr<std::shared_ptr<NcclFaults>> OpenNcclFaults(const std::string& path);

}  // namespace tensorcast::stand_ins
