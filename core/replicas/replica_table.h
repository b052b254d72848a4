// The node's replicas: how they are made, used, and removed, with pins and the least-recently-used order.
// Their states move in replica_states.h, which draws them.
//
// A partial replica is filled again by the next ingest of its artifact to its place (TakeOver), in more
// memory that shares what there is: leases go on, and the availability grows. So where there is one, nothing
// else of that artifact and place is ready or fills, but for a first ingest, which does not know yet what it
// makes. An availability ends with its ingest's error, and then a partial replica has a new one; so what a
// lease may read stays in its memory although the rest is given back. It ends with OK when all is there, and
// with UNAVAILABLE when the partial replica is to go. No listener is told of either under the mutex.
//
// A ready replica is leased, and one that fills or is partial where its availability is known. A reader of a
// partial replica for others (LeaseOf::kToServe) does not keep it from going: it drains, its
// availability ends, they stop, and then its memory is free. A request for memory waits for that (`ending`).
//
// Thread-safe. No call blocks on anything but freeing memory and, where it says so, waiting.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/disk/artifact_store.h"
#include "core/memory/host_pool.h"
#include "core/replicas/notifier.h"
#include "core/replicas/pool_holders.h"
#include "core/replicas/pool_space.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_record.h"
#include "core/replicas/replica_states.h"

namespace tensorcast {

// A replica that has left the table, and the memory that it had.
struct RetiredReplica {
  std::string replica_id;
  std::shared_ptr<const Manifest> manifest;
  TraceContext made_by;
  std::shared_ptr<const HostAllocation> memory;
};

class ReplicaTable {
 public:
  // `node_id` and the UUIDs of `devices` (may be null) are said in each replica's facts. At its end no lease
  // may be left.
  ReplicaTable(std::string node_id, const DeviceRuntime* devices, Notifier* notifier)
      : node_id_(std::move(node_id)), devices_(devices), states_(notifier) {}
  ReplicaTable(const ReplicaTable&) = delete;
  ReplicaTable& operator=(const ReplicaTable&) = delete;

  // --- making a replica; the ids are those of replicas in the state that each move starts from.
  // -> allocating. Of `replica` the id, the artifact id (empty until a first ingest has computed it), the
  // location, the bytes and the number of chunks; no manifest with an empty artifact id. Once `ingest` is
  // cancelled the replica counts as one that fails soon and gives its memory back. `made_by`: its span.
  void Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
           TraceContext made_by);
  // partial -> filling: the one of this artifact at this place, where there is one; its id. `ingest` as
  // above.
  std::optional<std::string> TakeOver(std::string_view artifact_id, Location location, Cancellation ingest);
  // What an ingest finds that has taken over; null and null: it has not.
  struct Part {
    std::shared_ptr<const HostAllocation> memory;
    std::shared_ptr<const Availability> chunks;
  };
  Part FindPart(std::string_view id) const;
  // allocating -> filling, or more memory for one that was taken over. `memory`: what the chunks are put
  // into, where that is host or device memory. With it a replica of a known artifact can be leased from here
  // on, on a device by LeaseSource and LeaseEarliest alone. `whole`: all its chunks are there or will be.
  void StartFilling(std::string_view id, ReplicaStorage memory, bool whole);
  // Of a filling one: this chunk is present. From the first that is not verified on, the replica is not given
  // to serve others, and readers that do so meanwhile are told that it ended.
  void AddChunk(std::string_view id, uint32_t chunk, bool verified);
  // allocating, filling -> failed, or partial where it can be leased and any chunk is there: the memory of
  // the others is given back. (One that was taken over and did not come to fill is as it was.) Memory that
  // StartFilling was not given is free already.
  void Fail(std::string_view id, const absl::Status& why);
  // filling -> ready, or partial where chunks are missing (that were not wanted), and a lease on it. Where a
  // ready replica of the same artifact is at the same location already, this one fails instead and its
  // storage is dropped; the lease is on the other. A partial one there drains when this one is ready, and so
  // does one that is not verified whole, if this one is.
  // DATA_LOSS, and the replica still fills: it was withdrawn meanwhile.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Complete(std::string_view id,
                                                         std::shared_ptr<const Manifest> manifest,
                                                         ReplicaStorage storage);
  // A replica of the previous daemon, in its memory and verified whole: ready from the start, unless there
  // is another one by now. Returns a lease on the one or the other.
  std::unique_ptr<ReplicaLease> AddKept(const std::shared_ptr<const Manifest>& manifest,
                                        HostAllocation memory);
  // A packed file found at start: ready from the beginning.
  void AddPackedFile(std::shared_ptr<PackedFile> file);

  // --- using one
  enum class LeaseOf : uint8_t {
    kReady,     // a ready replica
    kReadable,  // or one that can be leased though it fills or is partial
    // The same, for a holder that reads for others and ends the lease when its availability ends with an
    // error: it does not keep a partial replica from eviction. FAILED_PRECONDITION of one that is not
    // verified whole.
    kToServe,
  };
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view id, LeaseOf of);
  // Of a ready replica, or of one that has all of `chunks` where they are set. NOT_FOUND.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseAt(
      std::string_view artifact_id, Location location,
      const std::optional<std::vector<uint32_t>>& chunks = std::nullopt);
  // Whether the replica can be leased and has these chunks; false where there is none of that id.
  bool HasChunks(std::string_view id, std::span<const uint32_t> chunks) const;
  // To serve the ingest that makes `receiver`: of the best replica for it (ReplicaIndex::FindSource); null:
  // none. First waits while one that began before the receiver's has no memory yet, to the context's end at
  // most.
  std::unique_ptr<ReplicaLease> LeaseSource(std::string_view artifact_id, const std::set<Location>& except,
                                            std::string_view receiver, const RequestContext& context);
  // Of these replicas, ready or readable, also on a device, the one that began first; null: none.
  std::unique_ptr<ReplicaLease> LeaseEarliest(std::span<const std::string> ids);
  // The ready and verified replicas at a location with chunks of this size, the last used first.
  struct ReadyReplica {
    std::string id;
    std::shared_ptr<const Manifest> manifest;
  };
  std::vector<ReadyReplica> FindReady(Location location, uint64_t chunk_bytes) const;
  // How many replicas of the same artifact are being made on GPUs that began after this one, and so may be
  // given it. Waits for so many, to the context's end at most.
  size_t AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const;

  // --- getting rid of one
  // ready, partial -> draining, and on to gone when no lease is left. FAILED_PRECONDITION when it is neither,
  // or pinned and not `even_pinned`, or held and `only_unheld`. OK for one that is draining already, unless
  // `only_unheld`. A replica is held by each lease, a partial one only by those that are not to serve.
  struct DrainOptions {
    bool even_pinned = false;
    bool only_unheld = false;
    std::string_view reason = {};  // counted where it drains by this call (tc_pool_evictions_total)
  };
  absl::Status Drain(std::string_view id, const DrainOptions& options);
  // ready -> draining -> gone at once, and its memory is the caller's: no lease reads it. NOT_FOUND;
  // FAILED_PRECONDITION when it is not ready, not in host memory, pinned, leased, or being evicted.
  absl::StatusOr<RetiredReplica> Retire(std::string_view id);
  // Its bytes are not what they should be: it drains, pinned or not, and one that fills fails in the end.
  // Counted as corrupt.
  absl::Status Withdraw(std::string_view id);
  absl::Status SetPinned(std::string_view id, bool pinned);

  // --- making room
  // The least recently used evictable replica of the pool, marked so that no thread takes it too; or nullopt.
  std::optional<ReplicaInfo> ReserveVictim(Location pool, const std::set<std::string>& refused);
  void Unreserve(std::string_view id);
  PoolHolders Holders(Location pool) const;
  const PoolSpace& space() const { return states_.space; }

  // --- looking
  std::vector<ReplicaInfo> List() const;
  // Which chunks are present, of a replica in any state; NOT_FOUND when it is gone.
  absl::StatusOr<std::vector<bool>> PresentChunks(std::string_view id) const;
  absl::StatusOr<ReplicaInfo> Find(std::string_view id) const;
  // Those of an artifact in any state.
  std::vector<ReplicaInfo> FindArtifact(std::string_view artifact_id) const;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

 private:
  const std::string node_id_;
  const DeviceRuntime* const devices_;
  // Those that wait change nothing in it.
  mutable ReplicaStates states_;
  uint64_t begun_ ABSL_GUARDED_BY(states_.mutex) = 0;  // ingests
};

}  // namespace tensorcast
