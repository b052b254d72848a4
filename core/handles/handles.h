// What travels over the handle socket (FORMAT.md): descriptions of a replica's memory and the descriptors
// behind them; and what a ticket and an offer's token stand for at the daemon's end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/posix/foreign_fds.h"
#include "base/posix/unique_fd.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class Availability;
class PutRing;

// One of the memfds that a daemon's pool is made of, sealed. Its descriptor comes with the handles.
struct SegmentHandle {
  uint32_t number = 0;  // in the pool
  uint64_t bytes = 0;
  friend bool operator==(const SegmentHandle&, const SegmentHandle&) = default;
};

// Where the bytes of an image from `image_offset` on are.
struct SegmentExtent {
  uint64_t image_offset = 0;
  uint32_t segment = 0;  // in HostHandles::segments
  uint64_t offset = 0;   // in the segment
  uint64_t bytes = 0;
  friend bool operator==(const SegmentExtent&, const SegmentExtent&) = default;
};

// A host replica: whole granules, in the order of the image; one extent of whole pages where it is small.
// Where it has none, its image has a hole. The descriptors are those of the segments, in their order.
struct HostHandles {
  std::string pool_id;                  // HostPool::id(): the same id and number, the same memory
  std::vector<SegmentHandle> segments;  // that the extents lie in, in ascending order
  std::vector<SegmentExtent> extents;

  // Whether all image bytes [offset, offset + bytes) are there. REQUIRES: the handles are valid.
  bool Covers(uint64_t offset, uint64_t bytes) const;
};

// A GPU replica.
struct DeviceHandles {
  IpcHandle ipc;
};

// A disk replica: the packed file (the descriptor), open for reading.
struct FileHandles {
  uint64_t image_offset = 0;
};

struct ReplicaHandles {
  std::string replica_id;
  std::string artifact_id;
  uint64_t image_bytes = 0;
  std::variant<HostHandles, DeviceHandles, FileHandles> memory;
};

// The kind of process that a ticket is for.
enum class Holder : uint8_t { kClient, kDaemon };

// How many descriptors come with the handles: one for each segment or for the file, none for device memory.
size_t DescriptorsOf(const ReplicaHandles& handles);

// INVALID_ARGUMENT unless the extents are whole granules (of a small image: whole pages) that lie in the
// segments and in an image of `image_bytes`, in its order and without overlap. What is valid can be mapped.
absl::Status CheckHostHandles(const HostHandles& host, uint64_t image_bytes);

// The chunks, of so many bytes each, that lie in the handles' memory: a bit each, as Availability::Words has
// them. Empty when that is all of them. REQUIRES: the handles are valid, neither number is 0.
std::vector<uint64_t> ReadableChunks(const ReplicaHandles& handles, uint64_t image_bytes,
                                     uint64_t chunk_bytes);

// What a ticket stands for. Destroying `hold` releases the lease; that happens on the server's thread, with
// no lock held, and must not block.
struct Claim {
  ReplicaHandles handles;
  std::vector<int>
      fds;  // DescriptorsOf(handles), passed to the peer; stay the owner's, open while `hold` lives
  std::shared_ptr<void> hold;
  Holder holder = Holder::kClient;
  // Which chunks may be read, of a replica that fills or is partial; null: all. Told to a client that has the
  // claim and asks for it.
  std::shared_ptr<const Availability> availability;
};

// Told of each claim on host memory that a client makes, before it is answered: the client, with its pidfd.
// What it returns lives as long as the lease. On the server's thread; must not block.
using OnHostClaim = std::function<std::shared_ptr<void>(pid_t pid, UniqueFd process, const Claim& claim)>;

// Makes the claim one on a host replica's memory: its extents, and the segments of the pool that they lie in.
void SetHostMemory(Claim& claim, const HostPool& pool, std::string pool_id, const HostAllocation& memory);

// Image bytes [image_offset, image_offset + bytes), which lie from `offset` on in memory that is handed over.
struct HandedPart {
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  friend bool operator==(const HandedPart&, const HandedPart&) = default;
};

// Memory that nothing can change any more, and which parts of an image lie in it: they need not be streamed.
// Either a memfd that is sealed for good, or a replica in the daemon's own host memory.
struct HandedMemory {
  UniqueFd memfd;          // sealed WRITE | SHRINK | GROW; not set for a replica
  uint64_t bytes = 0;      // of the memfd
  std::string pool_id;     // where the replica lies, as HostHandles has it
  std::string replica_id;  // empty for a memfd
  std::vector<HandedPart> parts;
};

// What a client puts: memory or files that it handed over and still owns, valid while its connection lives (a
// memfd's mapping and files outlive it), or a ring through which it streams.
struct Offer {
  UniqueFd memfd;  // sealed WRITE | SHRINK | GROW, checked; not set for the others
  uint64_t bytes = 0;
  IpcHandle ipc;  // for device memory
  // Set: bytes are streamed. The client's connection ends with the last copy, which gives up the room.
  std::shared_ptr<PutRing> ring;
  // Beside a ring: what need not come through it. Of a memfd, the parts lie in it; nothing else about them is
  // checked.
  std::vector<HandedMemory> handed;
  // Files that are open for reading; nothing else about them is checked, since that could wait for their file
  // systems. Empty for memory.
  ForeignFds files;
};

}  // namespace tensorcast
