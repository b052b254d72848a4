// The node's replicas: makes, leases and removes them, with pins and the least-recently-used order.
// replica_states.h changes their states, and draws them.
//
// The next ingest of its artifact to its location fills a partial replica again (TakeOver). It adds memory
// and shares the existing memory: leases stay valid, and the availability grows. While a partial replica
// exists, no other replica of that artifact and location is ready or filling, except in a first ingest, which
// does not know its artifact yet. If an ingest fails, the availability ends with its error, and the partial
// replica gets a new one; memory that a lease may read stays, the rest is given back. The availability ends
// with OK when the replica is whole, and with UNAVAILABLE when the partial replica is to go. No observer is
// called under the mutex.
//
// A ready replica can be leased; a filling or partial replica can be leased if it has an availability. A
// lease to serve (LeaseOf::kToServe) does not keep a partial replica from going: the replica drains, its
// availability ends, the readers stop, and its memory is freed. A request for memory waits for that
// (PoolHolders::ending).
//
// Thread-safe. Calls block only while memory is freed and, where their comments say so, while they wait.
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

// A replica that has left the table, with its memory.
struct RetiredReplica {
  std::string replica_id;
  std::shared_ptr<const Manifest> manifest;
  TraceContext made_by;
  std::shared_ptr<const HostAllocation> memory;
};

class ReplicaTable {
 public:
  // ReplicaInfo gets `node_id` and the UUIDs of `devices` (may be null). The destructor REQUIRES that no
  // lease is left.
  ReplicaTable(std::string node_id, const DeviceRuntime* devices, Notifier* notifier)
      : node_id_(std::move(node_id)), devices_(devices), states_(notifier) {}
  ReplicaTable(const ReplicaTable&) = delete;
  ReplicaTable& operator=(const ReplicaTable&) = delete;

  // --- making a replica; the ids are those of replicas in the state that each move starts from.
  // -> allocating. `replica` has the id, the artifact id (empty until a first ingest has computed it), the
  // location, the bytes and the number of chunks; without an artifact id, `manifest` is null. After `ingest`
  // is cancelled, the replica counts as one that fails soon and gives its memory back. `made_by`: the
  // ingest's span.
  void Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
           TraceContext made_by);
  // partial -> filling, for the partial replica of this artifact at this location, if there is one. Returns
  // its id. `ingest` as for Add.
  std::optional<std::string> TakeOver(std::string_view artifact_id, Location location, Cancellation ingest);
  // The memory and chunks that an ingest takes over; both null if it has taken nothing over.
  struct Part {
    std::shared_ptr<const HostAllocation> memory;
    std::shared_ptr<const Availability> chunks;
  };
  Part FindPart(std::string_view id) const;
  // allocating -> filling, or more memory for a replica that was taken over. `memory`: the host or device
  // memory for the chunks, if that is the destination. With it, a replica of a known artifact can be leased
  // from now on; on a device only by LeaseSource and LeaseEarliest. `whole`: it has all its chunks, or will
  // have them.
  void StartFilling(std::string_view id, ReplicaStorage memory, bool whole);
  // Adds a present chunk to a filling replica. After the first unverified chunk the replica gives no leases
  // to serve, and existing leases to serve see the end of their availability.
  void AddChunk(std::string_view id, uint32_t chunk, bool verified);
  // allocating, filling -> failed, or -> partial if the replica can be leased and has a chunk; the memory of
  // its missing chunks is given back. A replica that was taken over and not filled stays unchanged. Memory
  // that was not given to StartFilling must be free already.
  void Fail(std::string_view id, const absl::Status& why);
  // filling -> ready, or -> partial if unwanted chunks are missing. Returns a lease on the replica. If a
  // ready replica of the same artifact is already at the location, this one fails instead, its storage is
  // dropped, and the lease is on the other replica. A partial replica there drains when this one is ready; so
  // does a replica with unverified chunks, if this one has none. With `replaces` a ready replica drains in
  // any case, and this one takes over its pin. DATA_LOSS if the replica was withdrawn meanwhile; it then
  // stays filling.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Complete(std::string_view id,
                                                         std::shared_ptr<const Manifest> manifest,
                                                         ReplicaStorage storage, bool replaces = false);
  // Adds a ready replica of the previous daemon, in its old memory and fully verified, unless another ready
  // replica exists by now. Returns a lease on the ready replica.
  std::unique_ptr<ReplicaLease> AddKept(const std::shared_ptr<const Manifest>& manifest,
                                        HostAllocation memory);
  // Adds a ready replica for a packed file that was found at start.
  void AddPackedFile(std::shared_ptr<PackedFile> file);

  // --- using one
  enum class LeaseOf : uint8_t {
    kReady,     // a ready replica
    kReadable,  // a ready replica, or a filling or partial one that can be leased
    // As kReadable, for a holder that serves other nodes and ends the lease when its availability ends with
    // an error. The lease does not keep a partial replica from eviction. FAILED_PRECONDITION for a replica
    // with unverified chunks.
    kToServe,
  };
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view id, LeaseOf of);
  // Leases a ready replica or, if `chunks` is set, one that has all these chunks. NOT_FOUND if there is none.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseAt(
      std::string_view artifact_id, Location location,
      const std::optional<std::vector<uint32_t>>& chunks = std::nullopt);
  // Whether the replica can be leased and has these chunks; false for an unknown id.
  bool HasChunks(std::string_view id, std::span<const uint32_t> chunks) const;
  // Leases the best source for the ingest that makes `receiver` (ReplicaIndex::FindSource); null: none. First
  // waits, at most until the context ends, while a possible source that began before the receiver has no
  // memory.
  std::unique_ptr<ReplicaLease> LeaseSource(std::string_view artifact_id, const std::set<Location>& except,
                                            std::string_view receiver, const RequestContext& context);
  // Leases the replica of `ids` that began first, among those that are ready or readable, also on a device;
  // null: none.
  std::unique_ptr<ReplicaLease> LeaseEarliest(std::span<const std::string> ids);
  // The ready and verified replicas at a location that have chunks of this size, the last used first.
  struct ReadyReplica {
    std::string id;
    std::shared_ptr<const Manifest> manifest;
  };
  std::vector<ReadyReplica> FindReady(Location location, uint64_t chunk_bytes) const;
  // How many replicas of the same artifact that began after this one are being made on GPUs: these may
  // receive it. Waits until there are `min`, at most until the context ends.
  size_t AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const;

  // --- getting rid of one
  // ready, partial -> draining, and on to gone when no lease is left. FAILED_PRECONDITION when the replica is
  // in another state, is pinned without `even_pinned`, or is held with `only_unheld`. OK for a draining
  // replica, unless `only_unheld`. Each lease holds a replica, except that leases to serve do not hold a
  // partial one.
  struct DrainOptions {
    bool even_pinned = false;
    bool only_unheld = false;
    std::string_view reason = {};  // counted if this call starts the draining (tc_pool_evictions_total)
  };
  absl::Status Drain(std::string_view id, const DrainOptions& options);
  // ready -> draining -> gone; the caller gets the memory. The replica is gone at once if nothing leases it,
  // otherwise when its leases have ended: there may be at most `live_leases`, and the caller ends them.
  // NOT_FOUND for an unknown id; FAILED_PRECONDITION when the replica is not ready, not in host memory,
  // pinned, leased more often, or being evicted.
  absl::StatusOr<RetiredReplica> Retire(std::string_view id, uint32_t live_leases = 0);
  // Removes a replica with wrong bytes: it drains, pinned or not; a filling replica fails at its end. Counted
  // as corrupt.
  absl::Status Withdraw(std::string_view id);
  absl::Status SetPinned(std::string_view id, bool pinned);

  // --- making room
  // The least recently used evictable replica of the pool, reserved for the calling thread; nullopt: none.
  std::optional<ReplicaInfo> ReserveVictim(Location pool, const std::set<std::string>& refused);
  void Unreserve(std::string_view id);
  PoolHolders Holders(Location pool) const;
  const PoolSpace& space() const { return states_.space; }
  void NoteChance() { states_.space.NoteChance(); }  // an event of space()

  // --- looking
  std::vector<ReplicaInfo> List() const;
  // The present chunks of a replica in any state; NOT_FOUND when it is gone.
  absl::StatusOr<std::vector<bool>> PresentChunks(std::string_view id) const;
  absl::StatusOr<ReplicaInfo> Find(std::string_view id) const;
  // The replicas of an artifact, in any state.
  std::vector<ReplicaInfo> FindArtifact(std::string_view artifact_id) const;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

 private:
  const std::string node_id_;
  const DeviceRuntime* const devices_;
  // Mutable for const methods that only wait.
  mutable ReplicaStates states_;
  uint64_t begun_ ABSL_GUARDED_BY(states_.mutex) = 0;  // ingests
};

}  // namespace tensorcast
