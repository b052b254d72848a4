// Faults of the stand-in for NCCL, which a test switches at run time: in a file that the test and its
// processes map, and that the environment variable names.
//
// Thread-safe, and safe between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tensorcast::stand_ins {

// Zero is not a fault. All but `version` are sets of ranks: bit r is for the next such event of rank r, in
// any communicator, and is cleared when the fault happens.
struct NcclFaults {
  std::atomic<int> version{0};  // the version that the library reports

  std::atomic<uint64_t> hang_join{0};  // hangs until it is aborted
  // In the middle of a broadcast:
  std::atomic<uint64_t> die{0};         // the process is killed
  std::atomic<uint64_t> hang{0};        // hangs until it is aborted
  std::atomic<uint64_t> late_error{0};  // an error that no call returns: the program has to ask for it

  std::atomic<uint64_t> hanging{0};  // the ranks that hang now, one bit each; tests do not set it

  static bool Take(std::atomic<uint64_t>& fault, int rank) {
    const uint64_t bit = uint64_t{1} << rank;
    return (fault.fetch_and(~bit) & bit) != 0;
  }
};

inline constexpr char kNcclFaultsVariable[] = "TENSORCAST_TEST_NCCL_FAULTS";
absl::StatusOr<std::shared_ptr<NcclFaults>> OpenNcclFaults(const std::string& path);

}  // namespace tensorcast::stand_ins
