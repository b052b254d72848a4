// Those of NCCL's functions that we call, found in the library at run time, and what their results mean.
// Nothing links NCCL: a host without it has the same binary.
//
// Values; immutable once found.
#pragma once

#include <nccl.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

struct NcclFunctions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;

  std::string version;  // "2.28.9"
};

// From the library of this path or, where it is empty, from the one that the loader finds. UNAVAILABLE where
// there is none, it lacks one of these or is too old.
absl::StatusOr<NcclFunctions> FindNccl(const std::string& path);

// OK also for ncclInProgress, which is not an error. `comm` (may be null) is asked for what happened.
absl::Status NcclStatus(const NcclFunctions& nccl, ncclResult_t result, std::string_view operation,
                        ncclComm_t comm);

}  // namespace tensorcast
