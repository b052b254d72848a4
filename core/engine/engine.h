// The store engine: owner of a node's replicas. It alone moves their states, runs ingests into them, hands
// out leases, and evicts the least recently used when a pool is full. No network, no RPC, no knowledge of
// transports.
//
// Thread-safe. Callbacks run on engine threads with no lock held; they must not block for long and must not
// destroy the engine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/engine/replica_lease.h"
#include "core/memory/host_pool.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class ArtifactStore;  // core/disk: the packed files of this node

// Asked before the engine evicts a `ready` replica to make room. May block (an RPC to the global store).
class EvictionGuard {
 public:
  virtual ~EvictionGuard() = default;
  // OK: evict it. Anything else: keep it, another copy could not be made again.
  virtual absl::Status MayEvict(const ReplicaInfo& replica) = 0;
};

// Told of every change that others need to know, in order, one call at a time.
class ReplicaListener {
 public:
  virtual ~ReplicaListener() = default;
  // `manifest` is set once known. A replica in kGone or kFailed is not heard of again.
  virtual void OnReplicaChanged(const ReplicaInfo& replica,
                                const std::shared_ptr<const Manifest>& manifest) = 0;
  virtual void OnTransferEnded(const TransferReport& report) = 0;
};

struct EngineOptions {
  HostPool* host_pool = nullptr;            // must outlive the engine
  DeviceRuntime* devices = nullptr;         // must outlive the engine
  uint64_t device_pool_bytes = 0;           // budget of each device; 0: 90 % of the device
  ArtifactStore* artifact_store = nullptr;  // null: no disk tier; must outlive the engine
  EvictionGuard* eviction_guard = nullptr;  // null: everything unleased may go; must outlive the engine
  ReplicaListener* listener = nullptr;      // may be null; must outlive the engine
  int max_concurrent_ingests = 4;           // more wait in a queue
  int copy_threads = 0;                     // slots of one ingest from memory; 0: one a core, at most 4
  int staging_buffers = 8;  // chunk-sized, from the host pool, shared by device and disk ingests
  uint64_t staging_buffer_bytes = kDefaultChunkBytes;  // the largest chunk that can be staged
};

struct MaterializeRequest {
  std::shared_ptr<const Manifest> manifest;
  Location location;
  std::shared_ptr<SourceProvider> sources;  // consulted only when nobody has or makes the replica already
  bool wait_for_space = false;              // wait for leases to end, to the deadline, instead of failing
};

// A first ingest: digests are computed, not checked.
struct FirstIngestRequest {
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  Location location;
  std::shared_ptr<SourceProvider> sources;
  bool wait_for_space = false;
};

// One caller's interest in an ingest that it may share with others. Dropping it gives up the interest; when
// the last one goes, the ingest is cancelled.
class PendingReplica {
 public:
  virtual ~PendingReplica() = default;

  // Blocks to the end, the context's deadline or its cancellation.
  virtual absl::StatusOr<std::unique_ptr<ReplicaLease>> Wait(const RequestContext& context) = 0;
  // Calls `callback` once, on an engine thread or at once, after which Wait returns without blocking.
  // Destroying this object first drops the callback, unless it is running.
  virtual void OnDone(std::function<void()> callback) = 0;
  virtual TransferProgress progress() const = 0;
  // The finished transfer, or nullopt when there was none: the replica was already there.
  virtual std::optional<TransferReport> report() const = 0;
  // True when another caller had started the ingest.
  virtual bool shared() const = 0;
  // True once it ended with a replica that this ingest made, and not one that was here with the same content.
  virtual bool made() const = 0;
  // The span of the ingest; not valid when there was none.
  virtual TraceContext ingest() const = 0;
};

class StoreEngine {
 public:
  // RESOURCE_EXHAUSTED when the staging buffers do not fit in the pool.
  static absl::StatusOr<std::unique_ptr<StoreEngine>> Create(const EngineOptions& options);
  // Cancels ingests and waits for their threads. REQUIRES: no lease is left, nor a PendingReplica of an
  // ingest that succeeded, which holds one.
  virtual ~StoreEngine() = default;

  // The replica of this artifact at this location: at once when it is ready, shared when it is being made.
  virtual absl::StatusOr<std::unique_ptr<PendingReplica>> Materialize(const RequestContext& context,
                                                                      MaterializeRequest request) = 0;
  // A new artifact. Ends with a lease on its replica, or on the one that already existed with the same
  // content.
  virtual absl::StatusOr<std::unique_ptr<PendingReplica>> Ingest(const RequestContext& context,
                                                                 FirstIngestRequest request) = 0;

  // A lease on a ready replica. NOT_FOUND when there is none (or none ready) of that id, or at that location.
  virtual absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseReplica(std::string_view replica_id) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseArtifact(std::string_view artifact_id,
                                                                      Location location) = 0;

  // Drops a replica: at once when it is not leased, else when its last lease ends (no new ones are given
  // meanwhile). FAILED_PRECONDITION when it is pinned, or the guard refuses and not `force`.
  virtual absl::Status Evict(std::string_view replica_id, bool force) = 0;
  virtual absl::Status SetPinned(std::string_view replica_id, bool pinned) = 0;
  // Every replica of an artifact, pinned or not, and its packed file: the artifact was deleted. Ingests of it
  // under way are cancelled; leased replicas go when their last lease ends. Replicas that became ready after
  // `as_of` (steady) stay: the same content was stored again since that was said.
  virtual absl::Status Forget(std::string_view artifact_id, absl::Time as_of) = 0;

  // Drops the disk replicas whose packed file somebody removed or replaced: they end with this process, and
  // are no copies. To be called now and then, on a thread that may wait for the disk; Materialize looks at
  // the one it is asked for.
  virtual void DropLostFiles() = 0;

  virtual std::vector<ReplicaInfo> ListReplicas() const = 0;
  // The manifest of any replica held here, or NOT_FOUND.
  virtual absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(
      std::string_view artifact_id) const = 0;

  virtual PoolStats device_pool_stats(int device) const = 0;
  // Running, waiting and queued ingests.
  virtual int active_ingests() const = 0;
  // Waits until there is none; false when the deadline came first.
  virtual bool AwaitNoIngests(absl::Time deadline) const = 0;
  // Those among them that wait for their turn.
  virtual int queued_ingests() const = 0;
  // Their reports so far, in the order in which they were asked for.
  virtual std::vector<TransferReport> RunningTransfers() const = 0;
};

}  // namespace tensorcast
