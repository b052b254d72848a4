// The store engine owns a node's replicas. Only the engine changes their states, runs ingests, gives leases,
// and evicts the least recently used replica when a pool is full. It uses no network, no RPC and no
// transport.
//
// Thread-safe. Callbacks run on engine threads with no lock held; they must not block for long and must not
// destroy the engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/device/numa.h"
#include "core/ingest/device_verification.h"
#include "core/ingest/ingest_request.h"
#include "core/ingest/pending_replica.h"
#include "core/memory/host_pool.h"
#include "core/replica/transfer_report.h"
#include "core/replicas/callbacks.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

class DeviceBroadcaster;  // core/device
struct WideGroupPlan;     // core/broadcast/broadcast_meeting.h
struct KeptReplica;       // core/replicas/kept_replicas.h
class ArtifactStore;      // core/disk: the packed files of this node

struct EngineOptions {
  std::string node_id;                       // the node that has these replicas, for ReplicaInfo
  HostPool* host_pool = nullptr;             // must outlive the engine
  DeviceRuntime* devices = nullptr;          // must outlive the engine
  uint64_t device_pool_bytes = 0;            // budget of each device; 0: 90 % of the device
  ArtifactStore* artifact_store = nullptr;   // null: no disk tier; must outlive the engine
  EvictionGuard* eviction_guard = nullptr;   // null: every eviction is permitted; must outlive the engine
  ReplicaListener* listener = nullptr;       // may be null; must outlive the engine
  DeviceBroadcaster* broadcaster = nullptr;  // null: no broadcasts, only copies; must outlive the engine
  int max_concurrent_ingests = 4;            // further ingests wait in a queue
  int copy_threads = 0;                      // threads of one ingest from memory; 0: one per core, at most 4
  int staging_buffers = 8;                   // in the host pool, shared by ingests to devices and to disk
  uint64_t staging_buffer_bytes = kMaxChunkBytes;  // the largest chunk that can be staged
  NumaNodes numa_nodes = {};                       // of the devices
  // Verification of chunks that come from GPU to GPU. A replica with unverified chunks serves
  // only clients of this node that lease it for themselves.
  DeviceVerification device_verification = DeviceVerification::kFull;
  // Whether to compare BLAKE3, too, for chunks from another host, so that no node can forge them. XXH3 is
  // always compared.
  bool distrust_other_hosts = false;
  // Max time that an ingest waits until a source has a chunk to fetch; the ingest then gives up its sources.
  absl::Duration peer_timeout = absl::Seconds(10);

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.device_pool", device_pool_bytes);
    config.Read("daemon.max_concurrent_ingests", max_concurrent_ingests);
    config.Read("daemon.copy_threads", copy_threads);
    config.Read("daemon.staging_buffers", staging_buffers);
    std::string verification = "full";
    config.Read("daemon.device_verification", verification);
    device_verification = ParseDeviceVerification(verification).value_or(device_verification);
  }
};

// The memory of the replicas at one location, in whole granules.
struct ReplicaBytes {
  uint64_t held = 0;         // bytes that cannot be evicted because of leases and pins
  int partial_replicas = 0;  // number of partial replicas
  uint64_t partial = 0;      // bytes of partial replicas
  uint64_t evictions = 0;    // number of replicas removed since the start (tc_pool_evictions_total)
};

class StoreEngine {
 public:
  // RESOURCE_EXHAUSTED if the staging buffers do not fit in the pool.
  static absl::StatusOr<std::unique_ptr<StoreEngine>> Create(const EngineOptions& options);
  // Cancels ingests and waits for their threads. REQUIRES: no lease is left. (The PendingReplica of an ingest
  // that succeeded holds a lease.)
  ~StoreEngine();
  StoreEngine(const StoreEngine&) = delete;
  StoreEngine& operator=(const StoreEngine&) = delete;

  // Takes over replicas that the previous daemon left in the pool's memory. Verifies each replica in the
  // background before the replica becomes ready; an ingest of the artifact verifies the replica at once. Call
  // Adopt once, before any other call. `on_settled` is OnKeptSettled of core/replicas/kept_replicas.h.
  void Adopt(
      std::vector<KeptReplica> replicas,
      std::function<void(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease)> on_settled);

  // Requests a replica. For a known artifact there are three cases:
  // - the replica is ready or has the wanted chunks: the result is complete at once;
  // - an ingest is making the replica: the caller shares that ingest;
  // - otherwise a new ingest starts, and continues a partial replica if there is one.
  // For a new artifact an ingest always starts. That ingest ends with a lease on its replica, or on an
  // existing replica of the same artifact.
  absl::StatusOr<std::unique_ptr<PendingReplica>> Ingest(const RequestContext& context,
                                                         IngestRequest request);

  // A lease on a ready replica. NOT_FOUND if there is no ready replica with that id or at that location.
  // LeaseArtifact: UNAVAILABLE while the artifact's replica of the previous daemon is not verified yet.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseReplica(std::string_view replica_id);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseArtifact(std::string_view artifact_id,
                                                              Location location);
  // A lease for callers that can use an incomplete replica. The replica may be ready, or a partial or filling
  // replica of a known artifact in host memory. NOT_FOUND for other replicas.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseFilling(std::string_view replica_id);
  // As LeaseFilling, to serve other nodes. A partial replica may be evicted despite such a lease: the holder
  // must end the lease soon after the replica's availability ends with an error. FAILED_PRECONDITION for a
  // replica with unverified chunks.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseToServe(std::string_view replica_id);

  // Blocks until the listener has received every change so far. Must not be called by the listener.
  void AwaitListener() const;

  // Allocates host memory for bytes that are not a replica. Evicts replicas as an ingest does, but does not
  // wait for leases or ingests. When this memory is freed, a waiting request may notice the free memory only
  // after some seconds. Errors as EvictingAllocator::AllocateHost.
  absl::StatusOr<HostAllocation> AllocateScratch(const RequestContext& context, const std::string& subject,
                                                 uint64_t bytes);

  // Removes a replica. A leased replica gets no new leases, and is removed when its last lease ends.
  // FAILED_PRECONDITION if the replica is pinned, allocating or filling. Without `force` also
  // FAILED_PRECONDITION if the guard refuses, and UNAVAILABLE if the guard cannot decide now.
  absl::Status Evict(std::string_view replica_id, bool force);
  // NOT_FOUND for an unknown replica; FAILED_PRECONDITION for a draining one.
  absl::Status SetPinned(std::string_view replica_id, bool pinned);
  // Removes all replicas of a deleted artifact, even pinned ones, and its packed file. Cancels running
  // ingests of the artifact. A leased replica is removed when its last lease ends. Replicas that became ready
  // after `as_of` stay, because the same content was stored again after the deletion.
  absl::Status Forget(std::string_view artifact_id, SteadyTime as_of);

  // Adds this node to a group that broadcasts an artifact between nodes. Ingests to the group's locations
  // join the group, and receive chunks by the broadcast until the broadcast ends.
  void BeginBroadcast(const WideGroupPlan& plan);

  // Removes disk replicas with a packed file that another process has removed or replaced. Call it
  // periodically, on a thread that may wait for the disk. Ingest itself checks the requested replica.
  void DropLostFiles();
  // Removes the replicas of unhealthy devices. Call it periodically. Each ingest also does this before it
  // reports its result.
  void WithdrawUnhealthy();

  std::vector<ReplicaInfo> ListReplicas() const;
  // The present chunks of a replica in any state, or NOT_FOUND.
  absl::StatusOr<std::vector<bool>> PresentChunks(std::string_view replica_id) const;
  // The manifest of an artifact of which this node has a replica, or NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

  // All zero for a device that this node does not have.
  PoolStats device_pool_stats(int device) const;
  ReplicaBytes replica_bytes(Location location) const;
  // Ingests that run, that wait for space or chunks, or that are queued.
  int active_ingests() const;
  // Waits until there is no active ingest; false if the deadline passed first.
  bool AwaitNoIngests(SteadyTime deadline) const;
  // Active ingests that have not begun to run.
  int queued_ingests() const;
  // Sources on other nodes that the active ingests read now.
  int peer_sources() const;
  // The reports so far of the active ingests, in the order of their requests.
  std::vector<TransferReport> RunningTransfers() const;

 private:
  struct Parts;
  explicit StoreEngine(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace tensorcast
