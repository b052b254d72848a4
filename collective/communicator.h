// Collectives between GPUs: the ranks of a group, in one process or in many, that all take part in the same
// broadcasts. One backend: NCCL, loaded at run time.
//
// A collective library can hang or abort its process (NCCL's issues #863 and #1777), so what uses this runs
// in a process that may be killed: the node's helper, never the daemon.
//
// Threading: a CollectiveLibrary is thread-safe; a Communicator is used by one thread at a time, but for
// Abort. Libraries outlive their communicators, the device runtime outlives both.
//
// Errors: UNAVAILABLE for what another rank or the network did (the group is lost, its members may form
// another one); INVALID_ARGUMENT for a call that cannot be meant; INTERNAL for what broke here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// What the ranks of one communicator have in common: made by one of them, and given to the others out of
// band. 128 bytes, and a secret: its holder can join, or connect to the process that made it.
struct CommunicatorId {
  std::string bytes;
};

// A rank of this process, and the GPU that it runs on: no two ranks of a communicator share one.
struct RankDevice {
  int rank = 0;
  int device = 0;
};

// This process's ranks of a communicator. After an error, or when a wait ended before its time, it has been
// aborted and every call says so (FAILED_PRECONDITION): its memory is free to use, and the others are told or
// will time out. Destroying one that is idle leaves the group in good order, and waits a few seconds at most
// for ranks that do not leave it; destroying one that is not idle aborts it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Enqueues, for every rank of this process, a broadcast of `bytes` from the root's buffer to all others'.
  // `buffers[i]` belongs to the i-th rank that Join was given, lies on its GPU, and stays allocated and
  // untouched until Await. Every process enqueues the same broadcasts in the same order: NCCL does not
  // notice when one does not. Nothing is enqueued where the arguments are refused (INVALID_ARGUMENT). Waits
  // for no bytes, but may wait for the other ranks until they broadcast too (the first time, they connect).
  virtual absl::Status Broadcast(const RequestContext& context, int root, absl::Span<const DevicePtr> buffers,
                                 uint64_t bytes) = 0;

  // Blocks until all that was enqueued is done at this process's ranks. DEADLINE_EXCEEDED or CANCELLED when
  // the context ends first.
  virtual absl::Status Await(const RequestContext& context) = 0;

  // From any thread, at any time: what is under way ends, and its waiters get CANCELLED.
  virtual void Abort() = 0;
};

class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;

  virtual std::string version() const = 0;  // "2.28.9"
  virtual absl::StatusOr<CommunicatorId> MakeId() = 0;
  // Joins with these ranks (at least one) of the `world_size` that the communicator has in all processes.
  // Blocks until all have joined, or the context ends.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext& context,
                                                             const CommunicatorId& id, int world_size,
                                                             absl::Span<const RankDevice> ranks) = 0;
};

// NCCL from the shared library `path`, or, where that is empty, from where the system's loader finds it.
// UNAVAILABLE with the reason where there is none, it is older than 2.18, the binary was built without its
// header, or `devices` are not CUDA's.
absl::StatusOr<std::unique_ptr<CollectiveLibrary>> LoadNccl(const std::string& path, DeviceRuntime* devices);

}  // namespace tensorcast
