#include "core/engine/engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/broadcast/fan_out.h"
#include "core/device/direct_copies.h"
#include "core/disk/artifact_store.h"
#include "core/ingest/ingest_queue.h"
#include "core/ingest/ingest_runner.h"
#include "core/ingest/replica_advancer.h"
#include "core/ingest/staging_ring.h"
#include "core/replicas/device_pool.h"
#include "core/replicas/evicting_allocator.h"
#include "core/replicas/kept_replicas.h"
#include "core/replicas/name_locks.h"
#include "core/replicas/notifier.h"
#include "core/replicas/replica_removal.h"
#include "core/replicas/replica_retirement.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {
namespace {

int CopyThreads(const EngineOptions& options) {
  // Left open, one a core, but a few only: more share the same memory bus.
  if (options.copy_threads > 0) return options.copy_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

uint64_t StagingBytes(const StagingRing& staging) {
  // The buffers lie in the host pool, which gives whole granules: the allocator plans with what they really
  // take.
  const uint64_t granules = (staging.buffer_bytes() + kGranuleBytes - 1) / kGranuleBytes;
  return granules * kGranuleBytes * staging.buffers();
}

}  // namespace

// In the order of their dependencies: each member uses only those above it, and is destroyed before them.
struct StoreEngine::Parts {
  Parts(const EngineOptions& options, std::unique_ptr<StagingRing> staging_buffers)
      : staging(std::move(staging_buffers)),
        direct(options.devices),
        device_pool(options.devices, options.device_pool_bytes),
        notifier(std::make_unique<Notifier>(options.listener)),
        table(options.node_id, options.devices, notifier.get()),
        removal(&table, options.devices, options.artifact_store, &disk_names, options.eviction_guard),
        allocator(&table, options.host_pool, &device_pool, options.eviction_guard, StagingBytes(*staging)),
        kept(&table, CopyThreads(options)),
        retirement(&table, options.eviction_guard, notifier.get()),
        advancer({.table = &table,
                  .pool = options.host_pool,
                  .allocator = &allocator,
                  .retirement = &retirement,
                  .staging = staging.get(),
                  .devices = options.devices,
                  .direct = &direct,
                  .copy_threads = CopyThreads(options)}),
        fan_out(&table, options.broadcaster),
        // The patience is half of the time after which a receiver gives its sources up: a root without new
        // chunks ends its group first.
        wide_broadcasts(&table, options.broadcaster, options.peer_timeout / 2),
        runner({.table = &table,
                .allocator = &allocator,
                .kept = &kept,
                .advancer = &advancer,
                .staging = staging.get(),
                .devices = options.devices,
                .direct = &direct,
                .artifact_store = options.artifact_store,
                .disk_names = &disk_names,
                .fan_out = &fan_out,
                .wide_broadcasts = &wide_broadcasts,
                .copy_threads = CopyThreads(options),
                .numa_nodes = options.numa_nodes,
                .device_verification = options.device_verification,
                .distrust_other_hosts = options.distrust_other_hosts,
                .peer_timeout = options.peer_timeout}),
        queue(&table, &runner, &removal, notifier.get(), options.max_concurrent_ingests) {}

  const std::unique_ptr<StagingRing> staging;
  DirectCopies direct;
  DevicePool device_pool;
  std::unique_ptr<Notifier> notifier;
  ReplicaTable table;
  NameLocks disk_names;
  ReplicaRemoval removal;
  EvictingAllocator allocator;
  KeptReplicas kept;
  const ReplicaRetirement retirement;
  const ReplicaAdvancer advancer;
  FanOut fan_out;
  WideBroadcasts wide_broadcasts;
  const IngestRunner runner;
  IngestQueue queue;
};

absl::StatusOr<std::unique_ptr<StoreEngine>> StoreEngine::Create(const EngineOptions& options) {
  if (options.host_pool == nullptr) {
    return absl::InvalidArgumentError("open the store engine: no host pool was given; give a host pool");
  }
  if (options.max_concurrent_ingests < 1) {
    return absl::InvalidArgumentError(absl::StrCat("open the store engine: ", options.max_concurrent_ingests,
                                                   " concurrent ingests are allowed; allow at least 1"));
  }
  if (options.staging_buffers < 0) {
    return absl::InvalidArgumentError(absl::StrCat("open the store engine: ", options.staging_buffers,
                                                   " staging buffers were asked for; ask for 0 or more"));
  }
  // Only chunks on their way to a device or a file are staged.
  const bool stages = options.artifact_store != nullptr ||
                      (options.devices != nullptr && !options.devices->devices().empty());
  TC_ASSIGN_OR_RETURN(std::unique_ptr<StagingRing> staging,
                      StagingRing::Create(options.host_pool, stages ? options.staging_buffers : 0,
                                          options.staging_buffer_bytes, options.numa_nodes));
  auto parts = std::make_unique<Parts>(options, std::move(staging));
  if (options.artifact_store != nullptr) {
    // Packed files outlive the process: each is a replica from the beginning.
    for (std::shared_ptr<PackedFile>& file : options.artifact_store->List()) {
      parts->table.AddPackedFile(std::move(file));
    }
  }
  return std::unique_ptr<StoreEngine>(new StoreEngine(std::move(parts)));
}

StoreEngine::StoreEngine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

StoreEngine::~StoreEngine() {
  // The threads end first: those that verify kept replicas, then ingests. Both use the table and the pools.
  parts_->kept.Stop();
  parts_->queue.Stop();
  // After the queue: its ingests are the members of broadcasts, and none may be left.
  parts_->wide_broadcasts.Stop();
  // While all other members still exist: the listener may call the engine.
  parts_->notifier.reset();
}

void StoreEngine::Adopt(std::vector<KeptReplica> replicas, OnKeptSettled on_settled) {
  parts_->kept.Start(std::move(replicas), std::move(on_settled));
}

absl::StatusOr<std::unique_ptr<PendingReplica>> StoreEngine::Ingest(const RequestContext& context,
                                                                    IngestRequest request) {
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("ingest of ", request.subject())));
  // Also where a replica is there: on an unhealthy device it is about to be withdrawn.
  if (request.location.kind == LocationKind::kGpu) {
    TC_RETURN_IF_ERROR(parts_->device_pool.CheckDevice(request.location.device));
  }
  if (request.manifest == nullptr) {
    TC_RETURN_IF_ERROR(ValidateLayout(request.new_layout));
    if (request.sources == nullptr) {
      return absl::InvalidArgumentError("ingest a new artifact: no source was given; give a source");
    }
  } else if (request.location.kind == LocationKind::kDisk) {
    // Another process can remove a packed file. Its replica leaves the table here, so that this request makes
    // a new one and is not answered with a file that is gone.
    parts_->removal.DropIfLost(request.manifest->id());
  }
  // To choose all chunks is to choose none: the request can share an ingest of the whole image.
  if (request.chunks.has_value() && request.chunks->size() == request.layout().chunk_count()) {
    request.chunks.reset();
  }
  return parts_->queue.Request(context, std::move(request));
}

void StoreEngine::BeginBroadcast(const WideGroupPlan& plan) { parts_->wide_broadcasts.Begin(plan); }

absl::StatusOr<std::unique_ptr<ReplicaLease>> StoreEngine::LeaseReplica(std::string_view replica_id) {
  return parts_->table.Lease(replica_id, ReplicaTable::LeaseOf::kReady);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> StoreEngine::LeaseArtifact(std::string_view artifact_id,
                                                                         Location location) {
  // A kept replica is not in the table before it is verified. UNAVAILABLE tells the caller to come again,
  // where NOT_FOUND would make it fetch what this node has.
  if (location.kind == LocationKind::kCpu && parts_->kept.FindManifest(artifact_id) != nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "lease ", artifact_id,
        ": the replica that was kept during the daemon's restart is not verified yet; try again"));
  }
  return parts_->table.LeaseAt(artifact_id, location);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> StoreEngine::LeaseFilling(std::string_view replica_id) {
  return parts_->table.Lease(replica_id, ReplicaTable::LeaseOf::kReadable);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> StoreEngine::LeaseToServe(std::string_view replica_id) {
  return parts_->table.Lease(replica_id, ReplicaTable::LeaseOf::kToServe);
}

absl::StatusOr<HostAllocation> StoreEngine::AllocateScratch(const RequestContext& context,
                                                            const std::string& subject, uint64_t bytes) {
  const AllocationRequest request{
      .subject = subject, .bytes = bytes, .await_ingests = false, .context = [&context] { return context; }};
  return parts_->allocator.AllocateHost(request, [bytes](HostPool& pool) { return pool.Allocate(bytes); });
}

void StoreEngine::AwaitListener() const { parts_->notifier->Flush(); }

absl::Status StoreEngine::Evict(std::string_view replica_id, bool force) {
  return parts_->removal.Evict(replica_id, force);
}

absl::Status StoreEngine::SetPinned(std::string_view replica_id, bool pinned) {
  return parts_->table.SetPinned(replica_id, pinned);
}

absl::Status StoreEngine::Forget(std::string_view artifact_id, SteadyTime as_of) {
  // What could still make a replica goes first, so that the removal sees all of them.
  parts_->kept.Forget(artifact_id);
  parts_->queue.Forget(artifact_id);
  return parts_->removal.RemoveArtifact(artifact_id, as_of);
}

void StoreEngine::DropLostFiles() { parts_->removal.DropAllLost(); }

void StoreEngine::WithdrawUnhealthy() { parts_->removal.WithdrawUnhealthy(); }

std::vector<ReplicaInfo> StoreEngine::ListReplicas() const { return parts_->table.List(); }

absl::StatusOr<std::vector<bool>> StoreEngine::PresentChunks(std::string_view replica_id) const {
  return parts_->table.PresentChunks(replica_id);
}

absl::StatusOr<std::shared_ptr<const Manifest>> StoreEngine::FindManifest(
    std::string_view artifact_id) const {
  // Kept replicas first: one that is verified meanwhile is in the table by the second look.
  if (std::shared_ptr<const Manifest> manifest = parts_->kept.FindManifest(artifact_id)) return manifest;
  return parts_->table.FindManifest(artifact_id);
}

PoolStats StoreEngine::device_pool_stats(int device) const { return parts_->device_pool.stats(device); }

ReplicaBytes StoreEngine::replica_bytes(Location location) const {
  const PoolHolders holders = parts_->table.Holders(location);
  return {.held = holders.leased.bytes + holders.pinned.bytes,
          .partial_replicas = holders.partial.replicas,
          .partial = holders.partial.bytes,
          .evictions = parts_->table.space().evictions(location)};
}

int StoreEngine::active_ingests() const { return parts_->queue.active(); }

bool StoreEngine::AwaitNoIngests(SteadyTime deadline) const { return parts_->queue.AwaitNone(deadline); }

int StoreEngine::queued_ingests() const { return parts_->queue.queued(); }

int StoreEngine::peer_sources() const { return parts_->queue.peer_sources(); }

std::vector<TransferReport> StoreEngine::RunningTransfers() const { return parts_->queue.Reports(); }

}  // namespace tensorcast
