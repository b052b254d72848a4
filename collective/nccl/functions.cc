#include "collective/nccl/functions.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr char kSoname[] = "libnccl.so.2";
// The first version in which communicators that do not block can be aborted at any point of their lives.
constexpr int kOldest = NCCL_VERSION(2, 18, 0);
static_assert(NCCL_VERSION_CODE >= kOldest, "nccl.h is older than what may be loaded");

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the library has no function ", name, "; install NCCL 2.18 or newer"));
}

absl::Status FindAll(void* library, NcclFunctions& nccl) {
  TC_RETURN_IF_ERROR(Find(library, "ncclGetVersion", nccl.get_version));
  TC_RETURN_IF_ERROR(Find(library, "ncclGetErrorString", nccl.get_error_string));
  TC_RETURN_IF_ERROR(Find(library, "ncclGetLastError", nccl.get_last_error));
  TC_RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", nccl.get_unique_id));
  TC_RETURN_IF_ERROR(Find(library, "ncclGroupStart", nccl.group_start));
  TC_RETURN_IF_ERROR(Find(library, "ncclGroupEnd", nccl.group_end));
  TC_RETURN_IF_ERROR(Find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config));
  TC_RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error));
  TC_RETURN_IF_ERROR(Find(library, "ncclCommFinalize", nccl.comm_finalize));
  TC_RETURN_IF_ERROR(Find(library, "ncclCommDestroy", nccl.comm_destroy));
  TC_RETURN_IF_ERROR(Find(library, "ncclCommAbort", nccl.comm_abort));
  return Find(library, "ncclBroadcast", nccl.broadcast);
}

// The codes of communicator.h: UNAVAILABLE where another rank or the network failed, INTERNAL for a failure
// in this process.
absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    case ncclRemoteError:
    case ncclSystemError:  // of the network, mostly
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<NcclFunctions> FindNccl(const std::string& path) {
  const std::string name = path.empty() ? kSoname : path;
  // Never closed again, since NCCL leaves threads behind that run its code.
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("load NCCL: ", dlerror(), "; install NCCL 2.18 or newer"));
  }
  NcclFunctions nccl;
  TC_RETURN_IF_ERROR(Annotate(FindAll(library, nccl), absl::StrCat("load NCCL from ", name)));
  int version = 0;
  TC_RETURN_IF_ERROR(NcclStatus(nccl, nccl.get_version(&version), "read the version of NCCL", nullptr));
  // Before 2.9 the number was written in another way, and was smaller.
  nccl.version = absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  if (version < kOldest) {
    return absl::UnavailableError(absl::StrCat("load NCCL from ", name,
                                               ": the library is older than 2.18 (version code ", version,
                                               "); install NCCL 2.18 or newer"));
  }
  return nccl;
}

absl::Status NcclStatus(const NcclFunctions& nccl, ncclResult_t result, std::string_view operation,
                        ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const char* const last = nccl.get_last_error(comm);
  const std::string detail = last == nullptr || *last == '\0' ? "" : absl::StrCat(" (", last, ")");
  return absl::Status(CodeOf(result),
                      absl::StrCat(operation, ": NCCL reports ", nccl.get_error_string(result), detail,
                                   "; set NCCL_DEBUG=WARN for more details"));
}

}  // namespace tensorcast
