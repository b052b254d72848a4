// Where an ingest puts its chunks: a replica's host memory, a device, or a packed file. The pipeline fetches
// each chunk into a buffer that the destination names, and has it placed once it is verified.
//
// Thread-safe, for chunks that do not overlap. Owns the memory until Finish hands it over; destroying it
// unfinished waits for copies under way and frees everything, but for memory that others share.
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

// Where one chunk is fetched to. Holds its staging buffer, if it has one.
struct ChunkBuffer {
  std::vector<HostSpan> spans;
  StagingBuffer staging;
};

// Returns when a chunk is in its place, or never will be. Null: it is.
using AwaitPlaced = absl::AnyInvocable<absl::Status()>;
// Returns when a chunk is in its place, or never will be, with its digest where one was asked for.
using AwaitDigested = absl::AnyInvocable<absl::StatusOr<Digest>()>;

class Destination {
 public:
  virtual ~Destination() = default;

  // How many chunks can be under way at once.
  virtual int max_chunks() const = 0;
  // False when a fetched chunk is where it belongs already.
  virtual bool places() const = 0;
  // May block for staging credit, to the context's end.
  virtual absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) = 0;
  // Puts a range's bytes into their place, or begins to: then they stay where they are until what is given
  // was called, or destroyed, which waits as well. An error is the destination's: no other source would help.
  virtual absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) = 0;
  // Whether bytes in memory of that device come straight into their place, by PlaceFrom: without the host,
  // and so without a buffer.
  virtual bool TakesFrom(int /*device*/) const { return false; }
  // Begins to copy a range from `source`, unless it is there already, and to digest it in its place where
  // that is wanted: until what is given was called, or destroyed, which waits as well. An error does not say
  // whether the source or the destination is at fault. REQUIRES: it takes from that device.
  virtual absl::StatusOr<AwaitDigested> PlaceFrom(ByteRange range, DevicePtr source, bool digest);
  // Where the bytes are as soon as their chunk is placed, and stay when this has gone, in host or device
  // memory; nothing: elsewhere.
  virtual ReplicaStorage memory() const { return {}; }
  // REQUIRES: every chunk that is wanted is placed. May block on the disk.
  virtual absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>& manifest) = 0;
};

// Chunks are fetched straight into the replica's own memory, which has room for those that are wanted.
std::unique_ptr<Destination> MakeHostDestination(HostAllocation memory);

// Chunks are staged, then copied, several at once: the copies run back to back. What a GPU has comes by
// `direct`. All must outlive it.
std::unique_ptr<Destination> MakeDeviceDestination(DeviceRuntime* devices, DeviceBlock memory,
                                                   StagingRing* staging, DirectCopies* direct);

// Chunks are staged, then written.
std::unique_ptr<Destination> MakeDiskDestination(std::unique_ptr<PackedWriter> writer, StagingRing* staging);

}  // namespace tensorcast
