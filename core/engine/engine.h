// The store engine: owner of a node's replicas. It alone moves their states, runs ingests into them, hands
// out leases, and evicts the least recently used when a pool is full. No network, no RPC, no knowledge of
// transports.
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
  std::string node_id;                       // of the node that has these replicas, as their facts say it
  HostPool* host_pool = nullptr;             // must outlive the engine
  DeviceRuntime* devices = nullptr;          // must outlive the engine
  uint64_t device_pool_bytes = 0;            // budget of each device; 0: 90 % of the device
  ArtifactStore* artifact_store = nullptr;   // null: no disk tier; must outlive the engine
  EvictionGuard* eviction_guard = nullptr;   // null: everything unleased may go; must outlive the engine
  ReplicaListener* listener = nullptr;       // may be null; must outlive the engine
  DeviceBroadcaster* broadcaster = nullptr;  // null: each GPU copies for itself; must outlive the engine
  int max_concurrent_ingests = 4;            // more wait in a queue
  int copy_threads = 0;                      // slots of one ingest from memory; 0: one a core, at most 4
  int staging_buffers = 8;  // chunk-sized, from the host pool, shared by device and disk ingests
  uint64_t staging_buffer_bytes = kMaxChunkBytes;  // the largest chunk that can be staged
  NumaNodes numa_nodes = {};                       // of the devices
  // Of what comes from GPU to GPU. A replica that is not verified whole serves only clients that lease it
  // for themselves.
  DeviceVerification device_verification = DeviceVerification::kFull;
  // Compare also the BLAKE3 of chunks from another host, so that no node can forge them. XXH3 is always
  // compared.
  bool distrust_other_hosts = false;
  // An ingest gives its sources up when they have had no chunk that it lacks for so long.
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

// What the replicas at one location take, in whole granules.
struct ReplicaBytes {
  uint64_t held = 0;  // that leases and pins keep from eviction
  int partial_replicas = 0;
  uint64_t partial = 0;
  uint64_t evictions = 0;  // replicas, since the start, for any reason (tc_pool_evictions_total)
};

class StoreEngine {
 public:
  // RESOURCE_EXHAUSTED when the staging buffers do not fit in the pool.
  static absl::StatusOr<std::unique_ptr<StoreEngine>> Create(const EngineOptions& options);
  // Cancels ingests and waits for their threads. REQUIRES: no lease is left, nor a PendingReplica of an
  // ingest that succeeded, which holds one.
  ~StoreEngine();
  StoreEngine(const StoreEngine&) = delete;
  StoreEngine& operator=(const StoreEngine&) = delete;

  // Replicas in memory of the pool that the previous daemon left there: each is ready as soon as it was
  // compared with its digests, in the background, or at once when an ingest of its artifact asks for it.
  // To be called once, before the rest. `on_settled`: as in kept_replicas.h.
  void Adopt(
      std::vector<KeptReplica> replicas,
      std::function<void(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease)> on_settled);

  // The replica of a known artifact: at once when it is ready or has the chunks that are wanted, shared when
  // it is being made, else by an ingest of its own, which goes on from a partial replica where there is one.
  // A new artifact is always ingested; that ends with a lease on its replica, or on the one that already
  // existed with the same content.
  absl::StatusOr<std::unique_ptr<PendingReplica>> Ingest(const RequestContext& context,
                                                         IngestRequest request);

  // A lease on a ready replica. NOT_FOUND when there is none (or none ready) of that id, or at that location;
  // UNAVAILABLE while one of the previous daemon is still to be verified.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseReplica(std::string_view replica_id);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseArtifact(std::string_view artifact_id,
                                                              Location location);
  // A lease for callers that can use what is there: on a ready or partial replica, or on one in host memory
  // that fills with a known artifact (not with a first ingest: nothing of it is verified).
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseFilling(std::string_view replica_id);
  // A lease to serve others: the holder reads for them and lets go of it soon after its availability has
  // ended with an error: they do not keep a partial replica from eviction. FAILED_PRECONDITION of one that is
  // not verified whole.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseToServe(std::string_view replica_id);

  // Host memory for bytes that are not a replica. Evicts as an ingest does, and does not wait for leases nor
  // for ingests: one of them may wait for this call. Those that wait for room find it within seconds of its
  // end. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::StatusOr<HostAllocation> AllocateScratch(const RequestContext& context, const std::string& subject,
                                                 uint64_t bytes);

  // Drops a replica: at once when it is not leased, else when its last lease ends (no new ones are given
  // meanwhile). FAILED_PRECONDITION when it is pinned, or the guard refuses and not `force`.
  absl::Status Evict(std::string_view replica_id, bool force);
  absl::Status SetPinned(std::string_view replica_id, bool pinned);
  // Every replica of an artifact, pinned or not, and its packed file: the artifact was deleted. Ingests of it
  // under way are cancelled; leased replicas go when their last lease ends. Replicas that became ready after
  // `as_of` (steady) stay: the same content was stored again since that was said.
  absl::Status Forget(std::string_view artifact_id, SteadyTime as_of);

  // This node takes part in a group in which an artifact is broadcast between nodes: the ingests to its
  // places join, and receive by the broadcast as far as it goes.
  void BeginBroadcast(const WideGroupPlan& plan);

  // Drops the disk replicas with a packed file that another process removed or replaced: they end here, and
  // are not copies. To be called now and then, on a thread that may wait for the disk; Ingest checks the one
  // it is asked for.
  void DropLostFiles();
  // Withdraws the replicas of devices that are unhealthy. To be called now and then; each ingest does so at
  // its end, so that a caller that is told of its failure finds them gone.
  void WithdrawUnhealthy();

  std::vector<ReplicaInfo> ListReplicas() const;
  // Which of its chunks a replica in any state has, or NOT_FOUND.
  absl::StatusOr<std::vector<bool>> PresentChunks(std::string_view replica_id) const;
  // The manifest of any replica held here, or NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

  // All zero for a device that this node does not have.
  PoolStats device_pool_stats(int device) const;
  ReplicaBytes replica_bytes(Location location) const;
  // Running, waiting and queued ingests.
  int active_ingests() const;
  // Waits until there is none; false when the deadline passed first.
  bool AwaitNoIngests(SteadyTime deadline) const;
  // Of the active ingests, those that wait for their turn.
  int queued_ingests() const;
  // Sources on other nodes that they read at this moment.
  int peer_sources() const;
  // Their reports so far, in the order in which they were asked for.
  std::vector<TransferReport> RunningTransfers() const;

 private:
  struct Parts;
  explicit StoreEngine(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace tensorcast
