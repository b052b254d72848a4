// Where an ingest puts its chunks: a replica's host memory, a device, or a packed file. The pipeline fetches
// each chunk into a buffer that the destination names, and has it placed once it is verified.
//
// Thread-safe for chunks that do not overlap. Owns the memory until Finish hands it over. Destroying an
// unfinished destination waits for running copies and frees all memory that no other object shares.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/device/device_runtime.h"
#include "core/device/direct_copies.h"
#include "core/disk/artifact_store.h"
#include "core/ingest/staging_ring.h"
#include "core/memory/host_pool.h"
#include "core/replicas/device_pool.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

// The memory that one chunk is fetched to. Holds the staging buffer, if there is one.
struct ChunkBuffer {
  std::vector<HostSpan> spans;
  StagingBuffer staging;
};

// Blocks until a chunk is placed, or has failed. Null: the chunk is placed already.
using AwaitPlaced = absl::AnyInvocable<absl::Status()>;
// Blocks until a chunk is placed, or has failed. Returns the chunk's digest if one was requested.
using AwaitDigested = absl::AnyInvocable<absl::StatusOr<Digest>()>;

class Destination {
 public:
  virtual ~Destination() = default;

  // How many chunks can be in flight at the same time.
  virtual int max_chunks() const = 0;
  // False if chunks are fetched straight to their place.
  virtual bool places() const = 0;
  // The memory to fetch a range to. May block for a staging buffer until the context ends.
  virtual absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) = 0;
  // Puts the bytes of a range into their place, or begins to. The caller keeps `bytes` unchanged until it has
  // called or destroyed the returned function; both wait. An error is the destination's fault: another source
  // would not help.
  virtual absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) = 0;
  // Whether PlaceFrom copies bytes in that device's memory straight to their place, without host memory and
  // without a buffer.
  virtual bool TakesFrom(int /*device*/) const { return false; }
  // Begins to copy a range from `source`, unless it is in place already, and to digest it in place if
  // `digest`. The caller keeps `source` unchanged until it has called or destroyed the returned function;
  // both wait. An error does not tell whether the source or the destination is at fault. REQUIRES:
  // TakesFrom(source.device).
  virtual absl::StatusOr<AwaitDigested> PlaceFrom(ByteRange range, DevicePtr source, bool digest);
  // Begins to copy a range from page-locked host memory, and to digest it in place. Else as PlaceFrom.
  // REQUIRES: TakesFrom(the destination's own device).
  virtual absl::StatusOr<AwaitDigested> PlaceFromHost(ByteRange range, std::span<const ConstHostSpan> source);
  // The host or device memory that has a chunk's bytes as soon as the chunk is placed, and that outlives this
  // object. Empty for other destinations.
  virtual ReplicaStorage memory() const { return {}; }
  // Hands the storage over. REQUIRES: every wanted chunk is placed. May block on the disk.
  virtual absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>& manifest) = 0;
};

// Chunks are fetched straight into the replica's own memory, which has room for the wanted chunks.
std::unique_ptr<Destination> MakeHostDestination(HostAllocation memory);

// Chunks are staged, then copied; several copies are queued, so that they run back to back. Bytes on a GPU
// are copied by `direct`. The pointers must outlive the destination.
std::unique_ptr<Destination> MakeDeviceDestination(DeviceRuntime* devices, DeviceBlock memory,
                                                   StagingRing* staging, DirectCopies* direct);

// Chunks are staged, then written.
std::unique_ptr<Destination> MakeDiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging);

}  // namespace tensorcast
