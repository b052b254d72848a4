// Broadcasts between GPUs. The ranks of a group, in one process or several, all take part in the same
// broadcasts. The only backend is NCCL, loaded at run time.
//
// A collective library can hang or abort its process (NCCL's issues #863 and #1777). It therefore only runs
// in a process that may be killed: the node's helper, never the daemon.
//
// Threading: a CollectiveLibrary is thread-safe. One thread at a time uses a Communicator, except for Abort.
// Libraries must outlive their communicators; the device runtime must outlive both.
//
// Errors: UNAVAILABLE when another rank or the network failed (the group is lost; its members may form a new
// one); INVALID_ARGUMENT for wrong arguments; INTERNAL for a failure in this process.
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

// The id that the ranks of one communicator share. One process makes it and gives it to the others out of
// band. 128 secret bytes: a process that has them can join, or connect to the process that made them.
struct CommunicatorId {
  std::string bytes;
};

// A rank of this process, and its GPU. No two ranks of a communicator share a GPU.
struct RankDevice {
  int rank = 0;
  int device = 0;
};

// This process's ranks of a communicator. An error, or a wait that its context ended, aborts the
// communicator. Every later call fails with FAILED_PRECONDITION, the buffers are free to use, and the other
// ranks learn of the abort or time out. Destroying an idle communicator leaves the group in good order, and
// waits at most a few seconds for the other ranks to leave. Destroying one that is not idle aborts it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Enqueues, for every rank of this process, a broadcast of `bytes` from the root's buffer to all others'.
  // `buffers[i]` belongs to the i-th rank that Join was given, lies on its GPU, and stays allocated and
  // untouched until Await. Every process must enqueue the same broadcasts in the same order; NCCL does not
  // notice a difference. Enqueues nothing if it refuses the arguments (INVALID_ARGUMENT). Does not wait for
  // bytes, but may wait until the other ranks call Broadcast too, as the ranks connect in the first one.
  virtual absl::Status Broadcast(const RequestContext& context, int root, absl::Span<const DevicePtr> buffers,
                                 uint64_t bytes) = 0;

  // Blocks until this process's ranks have completed all enqueued broadcasts. DEADLINE_EXCEEDED or CANCELLED
  // when the context ends first.
  virtual absl::Status Await(const RequestContext& context) = 0;

  // Aborts the communicator: calls in progress return CANCELLED. Any thread may call it at any time.
  virtual void Abort() = 0;
};

class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;

  virtual std::string version() const = 0;  // "2.28.9"
  virtual absl::StatusOr<CommunicatorId> MakeId() = 0;
  // Joins a communicator that has `world_size` ranks in all processes together; `ranks` (at least one) are
  // this process's ranks. Blocks until all ranks have joined, or the context ends.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext& context,
                                                             const CommunicatorId& id, int world_size,
                                                             absl::Span<const RankDevice> ranks) = 0;
};

// Loads NCCL from the shared library `path`, or, if that is empty, from where the system's loader finds it.
// UNAVAILABLE with the reason if there is no such library, it is older than 2.18, the binary was built
// without NCCL's header, or `devices` are not CUDA devices.
absl::StatusOr<std::unique_ptr<CollectiveLibrary>> LoadNccl(const std::string& path, DeviceRuntime* devices);

}  // namespace tensorcast
