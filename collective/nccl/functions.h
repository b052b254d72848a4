// The functions of NCCL that this folder calls, found in the library at run time, and the conversion of their
// results to statuses. Nothing links NCCL, so one binary also runs on hosts without it. Source of the
// declarations: nccl.h.
//
// Values, immutable after FindNccl; thread-safe.
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

// Loads the library `path` and finds the functions; if `path` is empty, the system's loader finds
// libnccl.so.2. The library stays loaded. UNAVAILABLE if the library is missing, lacks a function, or is
// older than 2.18.
absl::StatusOr<NcclFunctions> FindNccl(const std::string& path);

// Converts a result to a status: OK for ncclSuccess and ncclInProgress. `operation` and NCCL's last error of
// `comm` (may be null) are part of the message.
absl::Status NcclStatus(const NcclFunctions& nccl, ncclResult_t result, std::string_view operation,
                        ncclComm_t comm);

}  // namespace tensorcast
