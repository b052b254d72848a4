// The destination of an ingest's chunks: a replica's host memory, a device, or a packed file. The pipeline
// fetches each chunk into a buffer of the destination, and calls Place when the chunk is verified.
//
// Thread-safe for chunks that do not overlap. Owns the memory until Finish hands it over. The destructor of
// an unfinished destination waits for running copies and frees all memory that no other object shares.
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

// The memory into which a chunk is fetched. Owns the staging buffer, if there is one.
struct ChunkBuffer {
  std::vector<HostSpan> spans;
  StagingBuffer staging;
};

// Blocks until a chunk is placed, or has failed. Null: the chunk is already placed.
using AwaitPlaced = absl::AnyInvocable<absl::Status()>;
// Blocks until a chunk is placed, or has failed. Returns the chunk's digest; zeros if none was requested.
using AwaitDigested = absl::AnyInvocable<absl::StatusOr<Digest>()>;

class Destination {
 public:
  virtual ~Destination() = default;

  // The max number of chunks in flight.
  virtual int max_chunks() const = 0;
  // False if chunks are fetched directly to their place, so that Place does nothing.
  virtual bool places() const = 0;
  // The memory into which to fetch a range. May block for a staging buffer until the context ends.
  virtual absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) = 0;
  // Copies a range to its place, or begins the copy. `bytes` must not change until the caller has
  // called or destroyed the returned function; both wait for the copy. An error is the destination's fault:
  // another source would not help.
  virtual absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) = 0;
  // Whether PlaceFrom can copy from the memory of this device without a buffer in host memory.
  virtual bool TakesFrom(int /*device*/) const { return false; }
  // Begins to copy a range from `source` to its place; copies nothing if `source` is that place. With
  // `digest`, the device then digests the copied range. `source` must not change until the caller has called
  // or destroyed the returned function; both wait for the copy. An error can be the fault of the source or of
  // the destination. REQUIRES: TakesFrom(source.device).
  virtual absl::StatusOr<AwaitDigested> PlaceFrom(ByteRange range, DevicePtr source, bool digest);
  // As PlaceFrom with `digest`, but from page-locked host memory. REQUIRES: TakesFrom(the destination's own
  // device).
  virtual absl::StatusOr<AwaitDigested> PlaceFromHost(ByteRange range, std::span<const ConstHostSpan> source);
  // The host or device memory in which each placed chunk can be read. The caller shares ownership of the
  // memory. Empty for a packed file and for a committing destination (base_destinations.h).
  virtual ReplicaStorage memory() const { return {}; }
  // Hands the storage over. REQUIRES: every wanted chunk is placed. May block on the disk.
  virtual absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>& manifest) = 0;
};

// Chunks are fetched directly into the replica's own memory, which has room for the wanted chunks.
std::unique_ptr<Destination> MakeHostDestination(HostAllocation memory);

// Chunks are staged, then copied. PlaceFrom and PlaceFromHost copy with `direct`. The pointers must outlive
// the destination. `memory` may have the image of an earlier version, which other objects may still read.
std::unique_ptr<Destination> MakeDeviceDestination(DeviceRuntime* devices,
                                                   std::shared_ptr<const DeviceBlock> memory,
                                                   StagingRing* staging, DirectCopies* direct);

// Chunks are staged, then written. `staging` must outlive the destination.
std::unique_ptr<Destination> MakeDiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging);

}  // namespace tensorcast
