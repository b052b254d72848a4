// A stand-in for NCCL: the functions that the product calls, as a shared library for programs on the stand-in
// for the CUDA runtime. The real header is included, so the compiler compares every signature with the real
// one.
//
// It does what NCCL's documentation promises and no more, and is stricter where the real library would hang
// or return other bytes. A call that a correct program never makes ends the process with a message
// (Violation): for example ranks that broadcast different things, a call while another is in progress, or the
// use of a communicator after it was aborted.
#include <nccl.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/stand_ins/nccl/communicator.h"
#include "tests/stand_ins/violation.h"

namespace {

using tensorcast::stand_ins::Collective;
using tensorcast::stand_ins::GroupId;
using tensorcast::stand_ins::Launch;
using tensorcast::stand_ins::NcclFaults;

[[noreturn]] void Wrong(std::string_view what) { tensorcast::stand_ins::Violation("nccl", what); }

// Those that were made and neither destroyed nor aborted.
struct Communicators {
  absl::Mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> all ABSL_GUARDED_BY(mutex);
};

Communicators& Living() {
  static auto* const living = new Communicators;
  return *living;
}

std::shared_ptr<ncclComm> Find(ncclComm_t comm, std::string_view call) {
  Communicators& living = Living();
  absl::MutexLock lock(&living.mutex);
  const auto found = living.all.find(comm);
  if (found == living.all.end()) Wrong(absl::StrCat(call, " of a communicator that is not, or not any more"));
  return found->second;
}

// For the call that ends it.
std::shared_ptr<ncclComm> Take(ncclComm_t comm, std::string_view call) {
  std::shared_ptr<ncclComm> found = Find(comm, call);
  Communicators& living = Living();
  absl::MutexLock lock(&living.mutex);
  living.all.erase(comm);
  return found;
}

// What the thread has called since its outermost ncclGroupStart.
struct GroupCall {
  int depth = 0;
  std::vector<std::shared_ptr<ncclComm>> joining;
  std::set<std::shared_ptr<ncclComm>> broadcasting;
  std::shared_ptr<Launch> launch;
};

GroupCall& ThreadsGroup() {
  thread_local GroupCall group;
  return group;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const NcclFaults* const faults = tensorcast::stand_ins::ProcessNcclFaults();
  const int said = faults == nullptr ? 0 : faults->version.load();
  *version = said == 0 ? NCCL_VERSION_CODE : said;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "another error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "as said by the stand-in for NCCL"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto made = tensorcast::stand_ins::MakeGroup();
  if (!made.ok()) return ncclSystemError;
  static_assert(sizeof(GroupId) <= sizeof(ncclUniqueId));
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, &*made, sizeof(*made));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++ThreadsGroup().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  GroupCall& group = ThreadsGroup();
  if (group.depth == 0) Wrong("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const GroupCall ended = std::exchange(group, {});
  for (const auto& comm : ended.joining) comm->StartJoining();
  for (const auto& comm : ended.broadcasting) comm->Launched(ended.launch);
  return ended.joining.empty() && ended.broadcasting.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world, ncclUniqueId unique, int rank,
                                    ncclConfig_t* config) {
  if (comm == nullptr || rank < 0 || rank >= world || world > tensorcast::stand_ins::kMaxRanks) {
    return ncclInvalidArgument;
  }
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) {
    Wrong("a communicator is made that blocks: it cannot be aborted while it does");
  }
  GroupId id;
  std::memcpy(&id, unique.internal, sizeof(id));
  auto made = std::make_shared<ncclComm>(id, world, rank);
  *comm = made.get();
  {
    Communicators& living = Living();
    absl::MutexLock lock(&living.mutex);
    living.all[*comm] = made;
  }
  // Outside of a group the call is a group of its own. In a group it begins when the outermost one ends.
  ncclGroupStart();
  ThreadsGroup().joining.push_back(std::move(made));
  return ncclGroupEnd();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = Find(comm, "ncclCommGetAsyncError")->State();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto found = Find(comm, "ncclCommFinalize");
  found->CheckReady("ncclCommFinalize");
  found->Finalize();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Take(comm, "ncclCommDestroy")->Destroy();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Take(comm, "ncclCommAbort")->Abort();
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* source, void* destination, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const auto found = Find(comm, "ncclBroadcast");
  found->CheckReady("ncclBroadcast");
  if (source != destination) Wrong("a broadcast that is not in place");
  if (type != ncclUint8) Wrong("a broadcast of anything but bytes");
  ncclGroupStart();
  GroupCall& group = ThreadsGroup();
  if (group.launch == nullptr) group.launch = std::make_shared<Launch>();
  found->Enqueue(*group.launch, destination, {.root = root, .type = type, .count = count}, count, stream);
  group.broadcasting.insert(found);
  return ncclGroupEnd();
}

}  // extern "C"
