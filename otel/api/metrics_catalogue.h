// All metrics of TensorCast, each declared only here: kind, number of labels, handle (with a k in front),
// name, unit (UCUM), buckets, label keys, description. Views and instruments are made from this list, and
// docs/reference.py makes docs/reference/metrics.md from it: keep the form of its lines and groups.
//
// Names include their unit and counters end in _total, so that names are equal in OTLP and in Prometheus,
// whether or not a collector adds such suffixes. A unit is By or s if the name ends in bytes or seconds
// (before _total), and 1 for a ratio. Any other unit is an annotation in braces, which no collector adds
// to a name (tools/otel/check_names.py applies the rules). Standard library only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "otel/api/metrics.h"

// clang-format off
#define TENSORCAST_METRICS(X) \
  /* Memory pools. `device` is the GPU ordinal, "" for host memory. */ \
  X(Gauge, 2, PoolCapacityBytes, "tc_pool_capacity_bytes", "By", kNone, ("location", "device"), "Size of a memory pool") \
  X(Gauge, 2, PoolUsedBytes, "tc_pool_used_bytes", "By", kNone, ("location", "device"), "Bytes of a memory pool that replicas and staging buffers hold") \
  X(Gauge, 2, PoolPinnedBytes, "tc_pool_pinned_bytes", "By", kNone, ("location", "device"), "Bytes of a memory pool that leases and pins keep from eviction") \
  X(Gauge, 2, PoolPartialBytes, "tc_pool_partial_bytes", "By", kNone, ("location", "device"), "Bytes of a memory pool that partial replicas take") \
  X(Gauge, 2, PoolPartialReplicas, "tc_pool_partial_replicas", "{replica}", kNone, ("location", "device"), "Partial replicas, which hold some chunks of an artifact and are not copies") \
  X(Gauge, 2, PoolHighWaterBytes, "tc_pool_high_water_bytes", "By", kNone, ("location", "device"), "Max bytes of a memory pool that were in use at once") \
  X(ObservedCounter, 2, PoolAllocationFailures, "tc_pool_allocation_failures_total", "{allocation}", kNone, ("location", "device"), "Allocations that a memory pool refused because it had too little space") \
  X(Counter, 2, PoolEvictions, "tc_pool_evictions_total", "{replica}", kNone, ("location", "reason"), "Replicas evicted from a location (reason: space, request, deleted, corrupt, unhealthy)") \
  X(Gauge, 1, DeviceUnhealthy, "tc_device_unhealthy", "{device}", kNone, ("device"), "1 for a GPU that failed and takes no replicas until the daemon restarts, else 0") \
  /* Data plane. `lane`: local, tcp, ucx, ucx-rma, nccl. */ \
  X(Counter, 2, P2pBytes, "tc_p2p_bytes_total", "By", kNone, ("lane", "direction"), "Image bytes moved between daemons (direction: receive, serve). Both ends count the bytes; on the lane local only the receiver counts them, because the receiver copies from the source's memory") \
  X(Counter, 3, P2pPulls, "tc_p2p_pulls_total", "{pull}", kNone, ("lane", "direction", "outcome"), "Pulls between daemons that ended (outcome: ok, failed, cancelled)") \
  X(Histogram, 2, P2pThroughput, "tc_p2p_throughput_bytes_per_second", "{bytes_per_second}", kRate, ("lane", "direction"), "Throughput of a pull: its bytes divided by the time from its first request to its last byte") \
  X(Histogram, 3, P2pStageSeconds, "tc_p2p_stage_seconds", "s", kSeconds, ("lane", "direction", "stage"), "Time of one stage of a pull, from its first chunk to its last (stage: connect, fetch, verify, place)") \
  X(Histogram, 3, P2pStageBusySeconds, "tc_p2p_stage_busy_seconds", "s", kSeconds, ("lane", "direction", "stage"), "Time that one stage of a pull spent on chunks, summed over the chunks") \
  X(Counter, 2, P2pRefetchedChunks, "tc_p2p_refetched_chunks_total", "{chunk}", kNone, ("lane", "reason"), "Chunks that a peer did not deliver intact, fetched again from another source (reason: source_died, bad_digest, timeout)") \
  X(Counter, 0, P2pReassignedChunks, "tc_p2p_reassigned_chunks_total", "{chunk}", kNone, (), "Chunks taken back from a slow source and requested from a faster one") \
  X(Gauge, 0, P2pSources, "tc_p2p_sources", "{source}", kNone, (), "Other daemons from which this node's ingests pull at this moment") \
  X(Counter, 1, P2pServedFillingBytes, "tc_p2p_served_filling_bytes_total", "By", kNone, ("lane"), "Image bytes served from replicas that were still being filled") \
  X(Counter, 3, P2pFallbacks, "tc_p2p_fallbacks_total", "{fallback}", kNone, ("from", "to", "reason"), "Times that a transfer continued over another lane (from, to: lanes; reason: not_opened, source_died, bad_digest, timeout)") \
  X(Counter, 2, P2pHeldBack, "tc_p2p_held_back_total", "{wait}", kNone, ("lane", "direction"), "Times that a pull waited because of daemon.limits (direction: receive, serve)") \
  X(Counter, 2, P2pConnectionsRefused, "tc_p2p_connections_refused_total", "{connection}", kNone, ("lane", "reason"), "Connections of pulls that a node closed because of the peer (reason: certificate = the peer's certificate is missing, invalid or denied; receiver = the pull belongs to another node; ended = the certificate is no longer accepted)") \
  X(Counter, 2, ConservationChecks, "tc_conservation_checks_total", "{check}", kNone, ("what", "outcome"), "Comparisons of two processes' reports about one thing (outcome: ok, violated; what: pull = bytes sent and bytes received, compared by the receiver; inventory = replicas on a node and replicas that the global store lists, compared by the global store; grant = pulls that a node serves and their grants, compared by the global store)") \
  /* Broadcasts among the GPUs of a node. */ \
  X(Counter, 1, NcclBroadcasts, "tc_nccl_broadcasts_total", "{broadcast}", kNone, ("outcome"), "Broadcasts of a replica to several GPUs of this node that ended (outcome: ok, failed)") \
  X(Counter, 0, NcclBroadcastBytes, "tc_nccl_broadcast_bytes_total", "By", kNone, (), "Image bytes that broadcasts brought to GPUs of this node, counted once for each GPU") \
  X(Counter, 1, NcclHelperEnds, "tc_nccl_helper_ends_total", "{process}", kNone, ("reason"), "Times that the helper process of GPU broadcasts ended unexpectedly (reason: killed, died)") \
  /* Loads: a user waits for these. */ \
  X(Histogram, 2, ArtifactLoadSeconds, "tc_artifact_load_seconds", "s", kSeconds, ("source", "location"), "Time from a request for a replica until the replica was ready (source: attached, local, remote, disk, import, put)") \
  X(Counter, 2, ArtifactLoadBytes, "tc_artifact_load_bytes_total", "By", kNone, ("source", "location"), "Image bytes of the replicas made ready at a location") \
  X(Counter, 3, ArtifactLoads, "tc_artifact_loads_total", "{request}", kNone, ("source", "location", "outcome"), "Ended requests for a replica, by source, location and outcome") \
  X(Counter, 0, EqualChunkBytes, "tc_equal_chunk_bytes_total", "By", kNone, (), "Image bytes that transfers copied from equal chunks of other artifacts in this node's host memory, instead of pulling them") \
  X(Counter, 0, DifferenceBytes, "tc_difference_bytes_total", "By", kNone, (), "Image bytes that transfers rebuilt from an earlier version and differences on this node, instead of pulling them") \
  X(Counter, 1, DifferencePaths, "tc_difference_paths_total", "{transfer}", kNone, ("outcome"), "Transfers to this node for which the global store had differences from a version on this node (outcome: applied; no_room, not_brought, base_gone, difference_gone, damaged = why the transfer brought the whole image instead)") \
  X(Counter, 1, Differences, "tc_differences_total", "{difference}", kNone, ("outcome"), "Differences that puts asked for (outcome: made; no_base, not_in_memory, other_tensors, same, too_large, no_room, not_published = why the put published only the whole version)") \
  X(Counter, 0, ObjectRequests, "tc_object_requests_total", "{request}", kNone, (), "HTTP requests to object stores, model hubs and web servers, retries and redirects included") \
  X(Counter, 0, ObjectBytes, "tc_object_bytes_total", "By", kNone, (), "Bytes of bodies received from object stores, model hubs and web servers") \
  X(Counter, 1, ObjectRetries, "tc_object_retries_total", "{retry}", kNone, ("reason"), "HTTP requests to object stores, model hubs and web servers that were tried again (reason: status, timeout, lost_connection)") \
  /* Control plane. `method` is "Service/Method". */ \
  X(Counter, 3, RpcRequests, "tc_rpc_requests_total", "{call}", kNone, ("side", "method", "code"), "gRPC calls that ended, by gRPC status code (side: server, client)") \
  X(Counter, 3, RpcErrors, "tc_rpc_errors_total", "{call}", kNone, ("side", "method", "code"), "gRPC calls that ended with a status other than OK") \
  X(Histogram, 2, RpcDurationSeconds, "tc_rpc_duration_seconds", "s", kSeconds, ("side", "method"), "Time of a gRPC call; for a stream, until its end") \
  X(UpDownCounter, 2, RpcInFlight, "tc_rpc_in_flight", "{call}", kNone, ("side", "method"), "gRPC calls under way") \
  X(Gauge, 0, RpcConnections, "tc_rpc_connections", "{connection}", kNone, (), "Open connections to the gRPC ports and sockets of this process") \
  X(Counter, 1, RpcConnectionsRefused, "tc_rpc_connections_refused_total", "{connection}", kNone, ("reason"), "Connections that a gRPC server refused (reason: limit, descriptors)") \
  X(Gauge, 0, CertificateRemainingSeconds, "tc_certificate_remaining_seconds", "s", kNone, (), "Time until the certificate of this process ends") \
  X(Counter, 2, RpcCallsRefused, "tc_rpc_calls_refused_total", "{call}", kNone, ("method", "role"), "gRPC calls refused because the caller may not make them (role: the caller's role; an empty role = the caller's certificate is no longer valid, or the name in it is denied)") \
  /* Ingests of the engine. `location`: gpu, cpu, disk. */ \
  X(Gauge, 0, TransferQueueLength, "tc_transfer_queue_length", "{ingest}", kNone, (), "Ingests (transfers into a replica) that wait for a slot") \
  X(Gauge, 0, TransfersActive, "tc_transfers_active", "{ingest}", kNone, (), "Ingests (transfers into a replica) under way") \
  X(Counter, 1, TransfersCreated, "tc_transfers_created_total", "{ingest}", kNone, ("location"), "Ingests (transfers into a replica) that began") \
  X(Counter, 2, TransfersCompleted, "tc_transfers_completed_total", "{ingest}", kNone, ("location", "outcome"), "Ingests (transfers into a replica) that ended (outcome: ok, failed, cancelled)") \
  X(Histogram, 1, TransferWaitSeconds, "tc_transfer_wait_seconds", "s", kSeconds, ("location"), "Time an ingest waited for its slot") \
  X(Histogram, 2, TransferExecutionSeconds, "tc_transfer_execution_seconds", "s", kSeconds, ("location", "outcome"), "Time an ingest took once it had a slot") \
  /* Sessions and leases. */ \
  X(Gauge, 1, SessionsActive, "tc_sessions_active", "{connection}", kNone, ("kind"), "Connections on the handle socket (kind: client, daemon)") \
  X(Gauge, 2, LeasesActive, "tc_leases_active", "{lease}", kNone, ("kind", "location"), "Leases on replicas (kind: client, pull, ticket, ingest)") \
  X(Counter, 0, TicketsExpired, "tc_tickets_expired_total", "{ticket}", kNone, (), "Attach tickets that no client claimed in time") \
  X(Counter, 1, DamagedReplicas, "tc_damaged_replicas_total", "{replica}", kNone, ("location"), "Replicas with bytes that stopped matching their digests while this daemon held them") \
  /* Global store. */ \
  X(Gauge, 1, GlobalNodes, "tc_global_store_nodes", "{node}", kNone, ("state"), "Nodes of the cluster (state: alive, draining, lost = without heartbeats, but may still have replicas)") \
  X(Gauge, 0, GlobalArtifacts, "tc_global_store_artifacts", "{artifact}", kNone, (), "Artifacts that the global store knows") \
  X(Gauge, 0, GlobalKeys, "tc_global_store_keys", "{key}", kNone, (), "Keys bound in the global store") \
  X(Gauge, 0, GlobalDifferences, "tc_global_store_differences", "{difference}", kNone, (), "Differences between versions that the global store keeps") \
  X(Gauge, 0, GlobalDifferenceBytes, "tc_global_store_difference_bytes", "By", kNone, (), "Image bytes of the differences that the global store keeps, one copy of each") \
  X(Gauge, 2, GlobalReplicas, "tc_global_store_replicas", "{replica}", kNone, ("location", "state"), "Replicas in the cluster by location and state") \
  /* The fleet, from what nodes report to the global store (global_store/rollups). */ \
  X(Gauge, 3, FleetTransferSeconds, "tc_fleet_transfer_seconds", "s", kNone, ("zone", "rack", "percentile"), "Time of the transfers that ended in the last 15 minutes (percentile: 95 = 95 % of the transfers took at most this time; 100 = the longest), by the zone and rack of the receiver") \
  X(Gauge, 3, FleetTransferRate, "tc_fleet_transfer_bytes_per_second", "{bytes_per_second}", kNone, ("zone", "rack", "percentile"), "Rate of the transfers that ended in the last 15 minutes (percentile, counted from the fastest: 95 = 95 % of the transfers were at least this fast; 100 = the slowest), by the zone and rack of the receiver") \
  X(Gauge, 3, FleetStragglerSeconds, "tc_fleet_straggler_seconds", "s", kNone, ("zone", "rack", "node"), "Time of the longest transfer, under way or ended in the last 15 minutes, of each of the ten slowest nodes") \
  X(Gauge, 2, RolloutNodes, "tc_rollout_nodes", "{node}", kNone, ("key", "behind"), "Nodes by their newest version of a key (behind: 0 = the current version, 1 = the previous version, more = older versions); only the eight keys bound most recently, each for a day after its bind") \
  X(Gauge, 1, RolloutSeconds, "tc_rollout_seconds", "s", kNone, ("key"), "Time of a key's rollout: from the last bind of the key until each node that has an earlier version also has the current version; grows while the rollout runs") \
  X(Gauge, 0, GlobalGrantsActive, "tc_global_store_grants_active", "{grant}", kNone, (), "Transfer grants that have not ended") \
  X(Counter, 0, GlobalGrantsIssued, "tc_global_store_grants_issued_total", "{grant}", kNone, (), "Transfer grants that the global store gave") \
  X(Counter, 1, GlobalGrantsEnded, "tc_global_store_grants_ended_total", "{grant}", kNone, ("outcome"), "Transfer grants that ended (outcome: succeeded, failed, cancelled, overtaken, expired, revoked)") \
  X(Histogram, 1, GlobalSelectionWaitSeconds, "tc_global_store_selection_wait_seconds", "s", kSeconds, ("outcome"), "Time from a request for a transfer grant until the global store granted a source or refused the request") \
  X(Histogram, 2, MetadataOperationSeconds, "tc_metadata_store_operation_seconds", "s", kSeconds, ("backend", "operation"), "Time of a metadata-store operation") \
  X(Gauge, 0, MetadataBytes, "tc_metadata_store_bytes", "By", kNone, (), "Size of etcd's data on disk, as an etcd member last reported; etcd's quota limits this size") \
  X(Gauge, 0, LeaderLeads, "tc_leader_leads", "{leader}", kNone, (), "1 if this global store leads, 0 if it stands by for the leader") \
  X(Gauge, 0, LeaderEpoch, "tc_leader_epoch", "{epoch}", kNone, (), "Epoch number of this global store as leader; each new leader of a cluster has a greater number") \
  X(Gauge, 0, LeaderLeaseSeconds, "tc_leader_lease_seconds", "s", kNone, (), "Time for which this global store still leads if etcd does not answer") \
  X(Counter, 2, MetadataErrors, "tc_metadata_store_errors_total", "{operation}", kNone, ("backend", "operation"), "Metadata-store operations that failed") \
  /* Disk. */ \
  X(Counter, 1, DiskReadBytes, "tc_disk_read_bytes_total", "By", kNone, ("kind"), "Image bytes read from disk (kind: packed, origin)") \
  X(Counter, 1, DiskWrittenBytes, "tc_disk_written_bytes_total", "By", kNone, ("kind"), "Image bytes written to disk (kind: packed)") \
  X(Histogram, 1, DiskOperationSeconds, "tc_disk_operation_seconds", "s", kSeconds, ("operation"), "Time of a disk operation (operation: pack = write a whole artifact; read = read a chunk; scan = find packed files at start; remove = delete a file)") \
  X(Counter, 1, DiskErrors, "tc_disk_errors_total", "{operation}", kNone, ("operation"), "Disk operations that failed; for operation scan, packed files that could not be opened and are not used as sources") \
  X(Gauge, 0, DiskUsedBytes, "tc_disk_used_bytes", "By", kNone, (), "Bytes of packed artifact files") \
  X(Gauge, 0, DiskDamagedFiles, "tc_disk_damaged_files", "{file}", kNone, (), "Packed artifact files that are damaged and not used as sources") \
  X(Gauge, 0, DiskFreeBytes, "tc_disk_free_bytes", "By", kNone, (), "Bytes free on the file system of packed artifacts") \
  /* Resources. */ \
  X(ObservedCounter, 1, ProcessCpuSeconds, "tc_process_cpu_seconds_total", "s", kNone, ("mode"), "CPU time of this process (mode: user, system)") \
  X(Gauge, 1, ProcessMemoryBytes, "tc_process_memory_bytes", "By", kNone, ("kind"), "Memory of this process (kind: resident, shared, virtual)") \
  X(Gauge, 0, ProcessThreads, "tc_process_threads", "{thread}", kNone, (), "Threads of this process") \
  X(Gauge, 0, ProcessOpenFiles, "tc_process_open_files", "{file}", kNone, (), "Open file descriptors of this process") \
  X(ObservedCounter, 1, HostCpuSeconds, "tc_host_cpu_seconds_total", "s", kNone, ("mode"), "CPU time of the host over all cores (mode: user, system, iowait, idle)") \
  X(Gauge, 0, HostCpuUtilization, "tc_host_cpu_utilization_ratio", "1", kNone, (), "Share of the host's CPU time that was not idle since the last collection") \
  X(Gauge, 0, HostMemoryUsedBytes, "tc_host_memory_used_bytes", "By", kNone, (), "Memory of the host that is not available to new work") \
  X(Gauge, 0, HostMemoryTotalBytes, "tc_host_memory_total_bytes", "By", kNone, (), "Memory of the host") \
  X(Gauge, 0, HostMemoryUtilization, "tc_host_memory_utilization_ratio", "1", kNone, (), "Share of the host's memory that is used") \
  X(Gauge, 1, GpuUtilization, "tc_gpu_utilization_ratio", "1", kNone, ("gpu"), "Share of the last sampling period in which the GPU ran a kernel, from NVML") \
  X(Gauge, 1, GpuMemoryUsedBytes, "tc_gpu_memory_used_bytes", "By", kNone, ("gpu"), "Memory of the GPU in use by any process, from NVML") \
  X(Gauge, 1, GpuMemoryTotalBytes, "tc_gpu_memory_total_bytes", "By", kNone, ("gpu"), "Memory of the GPU, from NVML") \
  /* Telemetry of telemetry. */ \
  X(ObservedCounter, 1, TelemetryExported, "tc_telemetry_exported_total", "{item}", kNone, ("signal"), "Spans, log records and metric batches that an exporter accepted (signal: traces, logs, metrics)") \
  X(ObservedCounter, 2, TelemetryDropped, "tc_telemetry_dropped_total", "{item}", kNone, ("signal", "reason"), "Spans, log records and metric batches lost (reason: queue_full, export_failed, shutdown)") \
  X(ObservedCounter, 1, TelemetryExportFailures, "tc_telemetry_export_failures_total", "{export}", kNone, ("signal"), "Telemetry export calls that failed") \
  X(Gauge, 1, TelemetryQueueLength, "tc_telemetry_queue_length", "{item}", kNone, ("signal"), "Spans and log records that wait for export or are being exported") \
  X(ObservedCounter, 1, TelemetryInternalErrors, "tc_telemetry_internal_errors_total", "{complaint}", kNone, ("level"), "Problems that the OpenTelemetry SDK reported about itself (level: error, warning)")
// clang-format on

namespace tensorcast::otel {

enum class MetricKind : uint8_t { kCounter, kUpDownCounter, kHistogram, kGauge, kObservedCounter };
enum class Buckets : uint8_t { kNone, kSeconds, kRate };

struct MetricInfo {
  std::string_view name;
  MetricKind kind;
  std::string_view unit;
  std::string_view description;
  Buckets buckets;
  std::array<std::string_view, 3> label_keys;  // the first label_count are used
  size_t label_count;

  std::span<const std::string_view> labels() const { return {label_keys.data(), label_count}; }
};

// In the order of MetricId.
std::span<const MetricInfo> MetricsCatalogue();
inline const MetricInfo& InfoOf(MetricId id) { return MetricsCatalogue()[static_cast<size_t>(id)]; }

// Upper bounds of the histogram's buckets; empty for kNone.
std::span<const double> BucketBounds(Buckets buckets);

namespace internal {
enum class MetricIndex : uint16_t {
#define X(kind, labels, name, ...) k##name,
  TENSORCAST_METRICS(X)
#undef X
};
}  // namespace internal

namespace metrics {
#define X(kind, labels, name, ...)       \
  inline constexpr kind<labels> k##name{ \
      static_cast<MetricId>(::tensorcast::otel::internal::MetricIndex::k##name)};
TENSORCAST_METRICS(X)
#undef X
}  // namespace metrics

}  // namespace tensorcast::otel
