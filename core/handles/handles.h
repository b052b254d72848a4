// The values that travel over the handle socket (FORMAT.md): descriptions of a replica's memory, with
// descriptors; and the daemon's values behind a ticket (Claim) and an offer's token (Offer).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/posix/foreign_fds.h"
#include "base/posix/unique_fd.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// The remedy in errors about what the other end of a handle socket sent.
inline constexpr std::string_view kOneRelease = "; use a client and a daemon of one release";

class Availability;
class PutRing;

// One of the memfds that a daemon's pool is made of, sealed. Its descriptor comes with the handles.
struct SegmentHandle {
  uint32_t number = 0;  // in the pool
  uint64_t bytes = 0;
  friend bool operator==(const SegmentHandle&, const SegmentHandle&) = default;
};

// The place of the image's bytes from `image_offset` on.
struct SegmentExtent {
  uint64_t image_offset = 0;
  uint32_t segment = 0;  // in HostHandles::segments
  uint64_t offset = 0;   // in the segment
  uint64_t bytes = 0;
  friend bool operator==(const SegmentExtent&, const SegmentExtent&) = default;
};

// A host replica: extents of whole granules in image order, or one extent of whole pages for a small image.
// Parts of the image without an extent are holes. The descriptors are those of the segments, in their order.
struct HostHandles {
  std::string pool_id;                  // HostPool::id(): the same id and number, the same memory
  std::vector<SegmentHandle> segments;  // that the extents lie in, in ascending order
  std::vector<SegmentExtent> extents;

  // Whether the extents hold all image bytes [offset, offset + bytes). REQUIRES: the handles are valid.
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

// The chunks, of `chunk_bytes` each, that lie in the handles' memory: a bit for each, as Availability::Words.
// Empty if all chunks do. REQUIRES: the handles are valid, and neither number is 0.
std::vector<uint64_t> ReadableChunks(const ReplicaHandles& handles, uint64_t image_bytes,
                                     uint64_t chunk_bytes);

// The value behind a ticket. The server destroys `hold` to release the lease, on its own thread and without a
// lock; that must not block.
struct Claim {
  ReplicaHandles handles;
  std::vector<int>
      fds;  // DescriptorsOf(handles), passed to the peer; stay the owner's, open while `hold` lives
  std::shared_ptr<void> hold;
  Holder holder = Holder::kClient;
  // The chunks of a filling or partial replica that may be read; null: all. Announced to a client that has
  // the claim and sends FOLLOW.
  std::shared_ptr<const Availability> availability;
};

// Called with the client and its pidfd for each claim on host memory, before the answer is sent. The result
// lives as long as the lease. Runs on the server's thread; must not block.
using OnHostClaim = std::function<std::shared_ptr<void>(pid_t pid, UniqueFd process, const Claim& claim)>;

// Sets the claim's memory to a host replica's extents and the pool's segments that hold them.
void SetHostMemory(Claim& claim, const HostPool& pool, std::string pool_id, const HostAllocation& memory);

// Image bytes [image_offset, image_offset + bytes), which lie from `offset` on in memory that is handed over.
struct HandedPart {
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  friend bool operator==(const HandedPart&, const HandedPart&) = default;
};

// Memory that nothing can change any more, and the parts of an image in it, which need not be streamed.
// Either a memfd that is sealed for good, or a replica in the daemon's own host memory.
struct HandedMemory {
  UniqueFd memfd;          // sealed WRITE | SHRINK | GROW; not set for a replica
  uint64_t bytes = 0;      // of the memfd
  std::string pool_id;     // where the replica lies, as HostHandles has it
  std::string replica_id;  // empty for a memfd
  std::vector<HandedPart> parts;
};

// The input of a client's put: memory or files that the client handed over and still owns, or a ring through
// which it streams. Valid while the client's connection lives; a memfd's mapping and files outlive the
// connection.
struct Offer {
  UniqueFd memfd;  // sealed WRITE | SHRINK | GROW, checked; not set for the others
  uint64_t bytes = 0;
  IpcHandle ipc;  // for device memory
  // Set: bytes are streamed. The client's connection ends with the last copy, which gives up the room.
  std::shared_ptr<PutRing> ring;
  // With a ring: the parts that need not come through it. It is only checked that the parts lie in their
  // memfd.
  std::vector<HandedMemory> handed;
  // Files that are open for reading; nothing else about them is checked, since that could wait for their file
  // systems. Empty for memory.
  ForeignFds files;
};

}  // namespace tensorcast
