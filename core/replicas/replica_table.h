// The node's replicas: makes, leases and removes them, with pins and the least-recently-used order.
// replica_states.h changes their states, and has a diagram of the states.
//
// Partial replicas. The next ingest of the same artifact to the same location fills a partial replica again
// (TakeOver). Leases stay valid, and the availability grows. While a partial replica exists, no other replica
// of the same artifact and location is ready or filling. A first ingest is an exception, because it does not
// know its artifact yet.
//
// Availabilities. An availability ends with OK when the replica is complete, with the ingest's error when the
// ingest fails, and with UNAVAILABLE when a partial replica is removed. A replica that becomes partial
// because its ingest failed gets a new availability. No observer is called under the mutex.
//
// Leases. A ready replica can be leased. A filling or partial replica can be leased if it has an
// availability. A lease to serve (LeaseOf::kToServe) does not prevent the removal of a partial replica. The
// removed replica drains, its availability ends, and its readers must stop.
//
// Thread-safe. Calls block only while memory is freed, or if their comments say so.
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
  ReplicaStorage storage;  // host or device memory
};

class ReplicaTable {
 public:
  // `node_id` and the UUIDs of `devices` become part of ReplicaInfo. `devices` may be null. The pointers must
  // outlive the table. The destructor REQUIRES that no lease is left.
  ReplicaTable(std::string node_id, const DeviceRuntime* devices, Notifier* notifier)
      : node_id_(std::move(node_id)), devices_(devices), states_(notifier) {}
  ReplicaTable(const ReplicaTable&) = delete;
  ReplicaTable& operator=(const ReplicaTable&) = delete;

  // --- making a replica. REQUIRES: the replica `id` is in the state on the left of the arrow.
  //
  // -> allocating. `replica` has the id, the artifact id, the location, the bytes and the number of chunks.
  // In a first ingest the artifact id is empty and `manifest` is null. When `ingest` is cancelled, requests
  // for memory wait for the replica to fail. `made_by` is the ingest's span.
  void Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
           TraceContext made_by);
  // partial -> filling, for the partial replica of this artifact at this location, if there is one. Returns
  // its id. `ingest` as for Add.
  std::optional<std::string> TakeOver(std::string_view artifact_id, Location location, Cancellation ingest);
  // The memory and chunks of a replica that TakeOver has just returned; both null for other replicas.
  struct Part {
    std::shared_ptr<const HostAllocation> memory;
    std::shared_ptr<const Availability> chunks;
  };
  Part FindPart(std::string_view id) const;
  // allocating -> filling, or more memory for a replica that was taken over. `memory` is the host or device
  // memory for the chunks, empty for a packed file. From now on, a replica of a known artifact can be leased
  // if `memory` is not empty. Only LeaseSource and LeaseEarliest can lease a replica in device memory.
  // `whole`: the replica will have all its chunks.
  void StartFilling(std::string_view id, ReplicaStorage memory, bool whole);
  // Adds a present chunk to a filling replica. After the first unverified chunk the replica's availability
  // ends, and the replica cannot be leased to serve.
  void AddChunk(std::string_view id, uint32_t chunk, bool verified);
  // allocating, filling -> failed, or, in host memory, -> partial in two cases:
  //   - The replica can be leased and has a chunk. The memory of its missing chunks is given back.
  //   - The replica was taken over and not filled. It becomes partial again, unchanged.
  // A withdrawn replica always fails. So does a replica if its location has a ready replica of the artifact.
  // REQUIRES: memory that was not given to StartFilling is already free.
  void Fail(std::string_view id, const absl::Status& why);
  // filling -> ready, or -> partial if the ingest left out chunks. Returns a lease on the replica.
  //
  // If the location already has a ready replica of the artifact, only one of the two stays. If `replaces` is
  // true, or if only the old replica has unverified chunks, the old replica drains. Else the new one fails,
  // its storage is dropped, and the lease is on the old replica. With `replaces`, the new replica takes over
  // the pin. A partial replica of the artifact drains when the new replica becomes ready.
  //
  // DATA_LOSS if the replica was withdrawn; the replica then stays filling.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Complete(std::string_view id,
                                                         std::shared_ptr<const Manifest> manifest,
                                                         ReplicaStorage storage, bool replaces = false);
  // Adds a ready replica that was kept from the previous daemon, in its old memory and fully verified. If
  // host memory already has a ready replica of the artifact, drops `memory`. Leases the ready replica.
  std::unique_ptr<ReplicaLease> AddKept(const std::shared_ptr<const Manifest>& manifest,
                                        HostAllocation memory);
  // Adds a ready replica for a packed file that was found at the daemon's start.
  void AddPackedFile(std::shared_ptr<PackedFile> file);

  // --- using a replica
  enum class LeaseOf : uint8_t {
    kReady,     // a ready replica
    kReadable,  // a ready replica, or a filling or partial replica that can be leased
    // As kReadable, for a holder that serves other nodes. The holder must end the lease when the availability
    // of the lease ends with an error. The lease does not prevent the eviction of a partial replica.
    // FAILED_PRECONDITION for a replica with unverified chunks.
    kToServe,
  };
  // NOT_FOUND for an unknown replica, and for a replica in a state that `of` excludes.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view id, LeaseOf of);
  // Leases a ready replica, or else, if `chunks` is set, a replica that has all these chunks. NOT_FOUND if
  // the location has neither.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseAt(
      std::string_view artifact_id, Location location,
      const std::optional<std::vector<uint32_t>>& chunks = std::nullopt);
  // Whether the replica can be leased and has these chunks; false for an unknown id.
  bool HasChunks(std::string_view id, std::span<const uint32_t> chunks) const;
  // Leases the best source for the ingest that makes `receiver` (ReplicaIndex::FindSource); null if there is
  // none. First waits, at most until the context ends, while a replica that could become a source has no
  // memory.
  std::unique_ptr<ReplicaLease> LeaseSource(std::string_view artifact_id, const std::set<Location>& except,
                                            std::string_view receiver, const RequestContext& context);
  // Leases the replica that began first, of the replicas `ids` that are ready or readable, also on a device;
  // null if there is none.
  std::unique_ptr<ReplicaLease> LeaseEarliest(std::span<const std::string> ids);
  // The ready, completely verified replicas at a location that have chunks of this size; the most recently
  // used first.
  struct ReadyReplica {
    std::string id;
    std::shared_ptr<const Manifest> manifest;
  };
  std::vector<ReadyReplica> FindReady(Location location, uint64_t chunk_bytes) const;
  // The number of replicas of the same artifact that began after the replica `id` and are being made on GPUs.
  // Waits until there are `min` such replicas, at most until the context ends.
  size_t AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const;

  // --- removing a replica
  //
  // ready, partial -> draining, and then gone when no lease is left. FAILED_PRECONDITION if the replica is in
  // another state. A replica that already drains gives OK, or FAILED_PRECONDITION with `only_unheld`.
  struct DrainOptions {
    bool even_pinned = false;  // if false: FAILED_PRECONDITION for a pinned replica
    // If true: FAILED_PRECONDITION for a leased replica. Leases to serve a partial replica do not count.
    bool only_unheld = false;
    std::string_view reason = {};  // counted if this call starts the draining (tc_pool_evictions_total)
  };
  absl::Status Drain(std::string_view id, const DrainOptions& options);
  // ready -> draining -> gone; the caller gets the memory. The replica may have at most `live_leases` leases,
  // and is gone when the caller has ended these leases. NOT_FOUND for an unknown id. FAILED_PRECONDITION if
  // the replica is not ready, not in memory, pinned, has more leases, or is being evicted.
  absl::StatusOr<RetiredReplica> Retire(std::string_view id, uint32_t live_leases = 0);
  // Removes a replica with wrong bytes. The replica drains, even if pinned; a filling replica fails when its
  // ingest ends. Counted as corrupt.
  absl::Status Withdraw(std::string_view id);
  absl::Status SetPinned(std::string_view id, bool pinned);

  // --- making room
  // The replica to evict next (ReplicaIndex::FindVictim), reserved for the calling thread until Unreserve;
  // nullopt if there is none.
  std::optional<ReplicaInfo> ReserveVictim(Location pool, const std::set<std::string>& refused);
  void Unreserve(std::string_view id);
  PoolHolders Holders(Location pool) const;
  const PoolSpace& space() const { return states_.space; }
  void NoteChance() { states_.space.NoteChance(); }  // an event of space()

  // --- queries
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
  uint64_t begun_ ABSL_GUARDED_BY(states_.mutex) = 0;  // the number of ingests so far
};

}  // namespace tensorcast
