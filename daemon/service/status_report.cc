#include "daemon/service/status_report.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "daemon/node/node_messages.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

void AddPool(const NodeParts& parts, Location location, const PoolStats& stats, uint64_t pinned_bytes,
             google::protobuf::RepeatedPtrField<v1::Pool>* out) {
  v1::Pool* pool = out->Add();
  SetLocation(location, parts.devices, pool->mutable_location());
  pool->set_capacity_bytes(stats.capacity_bytes);
  pool->set_used_bytes(stats.used_bytes);
  pool->set_pinned_bytes(pinned_bytes);
  pool->set_high_water_bytes(stats.high_water_bytes);
  pool->set_failed_allocations(stats.failed_allocations);
}

uint64_t WholeGranules(uint64_t bytes) { return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes; }

void SetServing(const ServeReport& report, v1::ServeReport* out) {
  out->set_transport_id(report.transport_id);
  out->set_artifact_id(report.artifact_id);
  out->set_replica_id(report.replica_id);
  out->set_receiver_node_id(report.receiver_node_id);
  out->set_lane(report.lane);
  out->set_bytes(report.bytes);
  out->set_requests(report.requests);
  *out->mutable_opened() = rpc::ToProto(ToWallTime(report.opened));
  if (report.requests > 0) {
    *out->mutable_first_request() = rpc::ToProto(ToWallTime(report.first_request));
    *out->mutable_last_completion() = rpc::ToProto(ToWallTime(report.last_completion));
  }
  if (report.closed != absl::InfiniteFuture())
    *out->mutable_closed() = rpc::ToProto(ToWallTime(report.closed));
  out->set_in_place(report.in_place);
  *out->mutable_reading() = rpc::ToProto(report.reading);
  out->set_error(report.error);
}

void FillTransfers(const NodeParts& parts, v1::GetStatusResponse* out) {
  BytesByLane received = parts.transfers->bytes();
  for (const TransferReport& report : parts.engine->RunningTransfers()) {
    SetReport(report, parts.devices, out->add_running_transfers());
    AddBytes(report, &received);
  }
  for (const TransferReport& report : parts.transfers->Newest()) {
    SetReport(report, parts.devices, out->add_recent_transfers());
  }
  for (const ServeReport& report : parts.servings->Reports()) SetServing(report, out->add_servings());
  const BytesByLane served = parts.servings->bytes();
  std::map<std::string, v1::LaneTotal> lanes;
  for (const auto& [lane, bytes] : received) lanes[lane].set_bytes_received(bytes);
  for (const auto& [lane, bytes] : served) lanes[lane].set_bytes_served(bytes);
  for (auto& [lane, total] : lanes) {
    total.set_lane(lane);
    *out->add_lanes() = std::move(total);
  }
}

}  // namespace

absl::StatusOr<ReplicaInfo> NodeParts::FindReplica(std::string_view replica_id) const {
  for (ReplicaInfo& replica : engine->ListReplicas()) {
    if (replica.id == replica_id) {
      return std::move(replica);
    }
  }
  return absl::NotFoundError(absl::StrCat("there is no replica ", replica_id, " on this node"));
}

std::map<Location, uint64_t> PinnedBytes(const NodeParts& parts) {
  std::map<Location, uint64_t> pinned;
  for (const ReplicaInfo& replica : parts.engine->ListReplicas()) {
    if (replica.pinned || replica.leases > 0) {
      pinned[replica.location] += WholeGranules(replica.image_bytes);
    }
  }
  return pinned;
}

void FillPools(const NodeParts& parts, google::protobuf::RepeatedPtrField<v1::Pool>* out) {
  std::map<Location, uint64_t> pinned = PinnedBytes(parts);
  AddPool(parts, {LocationKind::kCpu}, parts.pool->stats(), pinned[{LocationKind::kCpu}], out);
  for (const DeviceInfo& device : parts.devices->devices()) {
    const Location location{LocationKind::kGpu, device.ordinal};
    AddPool(parts, location, parts.engine->device_pool_stats(device.ordinal), pinned[location], out);
  }
}

void FillStatus(const NodeParts& parts, v1::GetStatusResponse* out) {
  *out->mutable_node() = parts.Node();
  out->mutable_node()->set_draining(parts.stopping);
  out->set_global_store(parts.global_store_label);
  const absl::Status standing = parts.access.link->standing();
  out->set_global_store_reachable(standing.ok());
  out->set_global_store_error(std::string(standing.message()));
  FillPools(parts, out->mutable_pools());
  uint32_t leases = 0;
  const std::vector<ReplicaInfo> replicas = parts.engine->ListReplicas();
  for (const ReplicaInfo& replica : replicas) {
    leases += replica.leases;
  }
  out->set_replicas(static_cast<uint32_t>(replicas.size()));
  out->set_leases(leases);
  out->set_tickets(parts.handles->tickets());
  out->set_handle_connections(parts.handles->connections());
  out->set_active_transfers(parts.engine->active_ingests());
  out->set_active_servings(parts.servings->active());
  FillTransfers(parts, out);
  if (parts.artifact_store != nullptr) {
    for (const DamagedFile& file : parts.artifact_store->Damaged()) {
      v1::DamagedFile* damaged = out->add_damaged_files();
      damaged->set_path(file.path);
      damaged->set_artifact_id(file.artifact_id);
      damaged->set_error(file.error.ToString());
    }
  }
}

}  // namespace tensorcast::daemon
