// Broadcasts between GPUs. A group has ranks, one for each GPU, in one or several processes. All ranks take
// part in the same broadcasts. The only backend is NCCL, loaded at run time.
//
// A collective library can hang or abort its process (NCCL's issues #863 and #1777). Use it only in a process
// that may be killed: the node's helper, never the daemon.
//
// Threading: a CollectiveLibrary is thread-safe. One thread at a time uses a Communicator, except for Abort.
// A library must outlive its communicators; the device runtime must outlive both.
//
// Errors: UNAVAILABLE if another rank or the network failed (the group is then lost; its members may form a
// new one); INVALID_ARGUMENT for wrong arguments; INTERNAL for a failure in this process.
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

// The id of one communicator: 128 secret bytes. The process that makes the id (MakeId) sends it to the other
// processes. Any process that has the id can join, and can connect to the process that made it.
struct CommunicatorId {
  std::string bytes;
};

// A rank of this process, and the index of its GPU in the device runtime. Each rank of a communicator must
// have a GPU of its own.
struct RankDevice {
  int rank = 0;
  int device = 0;
};

// This process's ranks of a communicator. Any error except refused arguments aborts the communicator; so does
// a context that ends during a wait. After an abort the buffers are no longer accessed, every later call
// fails with FAILED_PRECONDITION, and the other ranks fail or time out. The destructor aborts unfinished
// broadcasts. The destructor of an idle communicator causes no error at the other ranks, and waits at most a
// few seconds until the other ranks leave too.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Enqueues a broadcast of `bytes` bytes, from the buffer of rank `root` to the buffers of all other ranks.
  // `buffers[i]` is the buffer of the i-th rank passed to Join. It must be on that rank's GPU, and must stay
  // allocated and must not be accessed until Await has returned. Every process must enqueue the same
  // broadcasts in the same order; NCCL does not detect a difference. A call with refused arguments
  // (INVALID_ARGUMENT) enqueues nothing. Does not wait for the bytes. But the first call, which connects the
  // ranks, may wait until all ranks have called Broadcast.
  virtual absl::Status Broadcast(const RequestContext& context, int root, absl::Span<const DevicePtr> buffers,
                                 uint64_t bytes) = 0;

  // Blocks until this process's ranks have completed all enqueued broadcasts. DEADLINE_EXCEEDED or CANCELLED
  // if the context ends first.
  virtual absl::Status Await(const RequestContext& context) = 0;

  // Aborts the communicator: calls in progress return CANCELLED. Thread-safe.
  virtual void Abort() = 0;
};

class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;

  virtual std::string version() const = 0;  // "2.28.9"
  virtual absl::StatusOr<CommunicatorId> MakeId() = 0;
  // Joins the communicator `id`. `world_size`: the number of ranks in all processes together. `ranks`: this
  // process's ranks, at least one. Blocks until all ranks have joined or the context ends.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext& context,
                                                             const CommunicatorId& id, int world_size,
                                                             absl::Span<const RankDevice> ranks) = 0;
};

// Loads NCCL from the shared library `path`; if `path` is empty, the system's loader finds libnccl.so.2.
// UNAVAILABLE with the reason if the library is missing or older than 2.18, if this binary was built
// without NCCL's header, or if `devices` are not CUDA devices.
absl::StatusOr<std::unique_ptr<CollectiveLibrary>> LoadNccl(const std::string& path, DeviceRuntime* devices);

}  // namespace tensorcast
