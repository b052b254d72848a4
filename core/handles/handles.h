// The values of the handle socket (FORMAT.md): the handles of a replica's memory, the value behind a ticket
// (Claim), and the value behind an offer's token (Offer).
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
inline constexpr std::string_view kOneRelease = "; run the same TensorCast release in both processes";

class Availability;
class PutRing;

// A segment of a daemon's pool: a sealed memfd. Its descriptor comes with the handles.
struct SegmentHandle {
  uint32_t number = 0;  // in the pool
  uint64_t bytes = 0;
  friend bool operator==(const SegmentHandle&, const SegmentHandle&) = default;
};

// The place of the image's bytes from `image_offset` on.
struct SegmentExtent {
  uint64_t image_offset = 0;
  uint32_t segment = 0;  // index in HostHandles::segments
  uint64_t offset = 0;   // in the segment
  uint64_t bytes = 0;
  friend bool operator==(const SegmentExtent&, const SegmentExtent&) = default;
};

// A host replica has extents of whole granules in image order; a small image has one extent of whole pages.
// The image may have holes, which have no extent. Each segment has one descriptor, in the same order.
struct HostHandles {
  std::string pool_id;                  // HostPool::id(); with SegmentHandle::number, it identifies memory
  std::vector<SegmentHandle> segments;  // those with extents, by ascending number
  std::vector<SegmentExtent> extents;

  // Whether the extents hold all image bytes [offset, offset + bytes). REQUIRES: the handles are valid.
  bool Covers(uint64_t offset, uint64_t bytes) const;
};

// A GPU replica.
struct DeviceHandles {
  IpcHandle ipc;
};

// A disk replica. Its descriptor is the packed file, open for reading.
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

// The number of descriptors that come with the handles: one for each segment, one for a file, 0 for device
// memory.
size_t DescriptorsOf(const ReplicaHandles& handles);

// INVALID_ARGUMENT unless the handles can be mapped. The extents must be whole granules (whole pages for a
// small image), lie in their segments and in an image of `image_bytes` bytes, and be in image order without
// overlaps.
absl::Status CheckHostHandles(const HostHandles& host, uint64_t image_bytes);

// The chunks, of `chunk_bytes` each, that are completely in the handles' memory, as Availability::Words.
// Empty means all chunks. REQUIRES: the handles are valid, and both numbers are positive.
std::vector<uint64_t> ReadableChunks(const ReplicaHandles& handles, uint64_t image_bytes,
                                     uint64_t chunk_bytes);

// The value behind a ticket. The server destroys `hold` to release the lease, on the server's thread and with
// no lock held; the destruction must not block.
struct Claim {
  ReplicaHandles handles;
  // The descriptors for the client, DescriptorsOf(handles) in number. The issuer owns the descriptors, and
  // keeps them open at least until `hold` is destroyed.
  std::vector<int> fds;
  std::shared_ptr<void> hold;
  Holder holder = Holder::kClient;
  // The readable chunks of a filling or partial replica, announced after FOLLOW. Null: all are readable.
  std::shared_ptr<const Availability> availability;
};

// Called for each claim of a client on host memory, with the client's pid and pidfd, before the server sends
// the answer. Not called if the server could not get a pidfd. The result lives as long as the lease. Runs on
// the server's thread; must not block.
using OnHostClaim = std::function<std::shared_ptr<void>(pid_t pid, UniqueFd process, const Claim& claim)>;

// Sets the claim's memory to a host replica's extents and the pool's segments that hold them.
void SetHostMemory(Claim& claim, const HostPool& pool, std::string pool_id, const HostAllocation& memory);

// Image bytes [image_offset, image_offset + bytes), which are at `offset` in a HandedMemory.
struct HandedPart {
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  friend bool operator==(const HandedPart&, const HandedPart&) = default;
};

// Memory that can no longer change: a sealed memfd, or a replica in the daemon's host memory. `parts` are the
// parts of an image in this memory, which need not be streamed.
struct HandedMemory {
  UniqueFd memfd;          // sealed WRITE | SHRINK | GROW; not set for a replica
  uint64_t bytes = 0;      // of the memfd
  std::string pool_id;     // HostHandles::pool_id of the replica
  std::string replica_id;  // empty for a memfd
  std::vector<HandedPart> parts;
};

// The input of a client's put: a memfd, device memory or files of the client, or a ring through which the
// client streams. Exactly one of memfd, ipc, ring and files is set. Device memory is valid only during the
// client's connection; a memfd, files and a ring outlive the connection.
struct Offer {
  UniqueFd memfd;  // sealed WRITE | SHRINK | GROW, checked
  uint64_t bytes = 0;
  IpcHandle ipc;  // of device memory
  // The ring of a stream. When the last copy of this pointer is destroyed, the client's connection ends, and
  // the ring's memory is released.
  std::shared_ptr<PutRing> ring;
  // With a ring: the parts that need not come through the ring. Parts of a memfd are checked to lie in it;
  // parts of a replica are not checked.
  std::vector<HandedMemory> handed;
  // Files that are checked to be open for reading. Any other check could wait for a file system.
  ForeignFds files;
};

}  // namespace tensorcast
