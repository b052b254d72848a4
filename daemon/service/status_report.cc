#include "daemon/service/status_report.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "daemon/node/node_messages.h"
#include "rpc/convert/convert.h"
#include "rpc/credentials.h"

namespace tensorcast::daemon {
namespace {

uint64_t WholeGranules(uint64_t bytes) { return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes; }

v1::ServeReport ToProto(const ServeReport& report) {
  v1::ServeReport message;
  message.set_grant_id(report.grant_id);
  message.set_artifact_id(report.artifact_id);
  message.set_replica_id(report.replica_id);
  message.set_receiver_node_id(report.receiver_node_id);
  message.set_lane(report.lane);
  message.set_bytes(report.bytes);
  message.set_requests(report.requests);
  *message.mutable_opened() = rpc::ToProto(ToWallTime(report.opened));
  if (report.requests > 0) {
    *message.mutable_first_request() = rpc::ToProto(ToWallTime(report.first_request));
    *message.mutable_last_completion() = rpc::ToProto(ToWallTime(report.last_completion));
  }
  if (report.closed != SteadyTime::InfiniteFuture()) {
    *message.mutable_closed() = rpc::ToProto(ToWallTime(report.closed));
  }
  message.set_in_place(report.in_place);
  *message.mutable_reading() = rpc::ToProto(report.reading);
  if (!report.error.ok()) *message.mutable_error() = rpc::ToProto(report.error);
  return message;
}

}  // namespace

std::map<Location, uint64_t> PinnedBytes(const StoreEngine& engine) {
  std::map<Location, uint64_t> pinned;
  for (const ReplicaInfo& replica : engine.ListReplicas()) {
    if (replica.pinned || replica.leases > 0) pinned[replica.location] += WholeGranules(replica.image_bytes);
  }
  return pinned;
}

void StatusReporter::AddPool(Location location, const PoolStats& stats, uint64_t pinned_bytes,
                             google::protobuf::RepeatedPtrField<v1::Pool>* out) const {
  v1::Pool* pool = out->Add();
  *pool->mutable_location() = daemon::ToProto(location, options_.devices);
  pool->set_capacity_bytes(stats.capacity_bytes);
  pool->set_used_bytes(stats.used_bytes);
  pool->set_pinned_bytes(pinned_bytes);
  pool->set_high_water_bytes(stats.high_water_bytes);
  pool->set_failed_allocations(stats.failed_allocations);
}

void StatusReporter::FillTransfers(v1::GetStatusResponse* out) const {
  BytesByLane received = options_.transfers->bytes();
  for (const TransferReport& report : options_.engine->RunningTransfers()) {
    *out->add_running_transfers() = daemon::ToProto(report, options_.devices);
    AddBytes(report, &received);
  }
  for (const TransferReport& report : options_.transfers->Newest()) {
    *out->add_recent_transfers() = daemon::ToProto(report, options_.devices);
  }
  for (const ServeReport& report : options_.servings->Reports()) *out->add_servings() = ToProto(report);
  const BytesByLane served = options_.servings->bytes();
  std::map<std::string, v1::LaneTotal> lanes;
  for (const auto& [lane, bytes] : received) lanes[lane].set_bytes_received(bytes);
  for (const auto& [lane, bytes] : served) lanes[lane].set_bytes_served(bytes);
  for (auto& [lane, total] : lanes) {
    total.set_lane(lane);
    *out->add_lanes() = std::move(total);
  }
}

void StatusReporter::FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* out) const {
  std::map<Location, uint64_t> pinned = PinnedBytes(*options_.engine);
  AddPool({LocationKind::kCpu}, options_.pool->stats(), pinned[{LocationKind::kCpu}], out);
  for (const DeviceInfo& device : options_.devices->devices()) {
    const Location location{LocationKind::kGpu, device.ordinal};
    AddPool(location, options_.engine->device_pool_stats(device.ordinal), pinned[location], out);
  }
}

v1::GetStatusResponse StatusReporter::Report() const {
  v1::GetStatusResponse report;
  *report.mutable_node() = options_.node->Describe();
  report.set_global_store(options_.global_store_label);
  const absl::Status standing = options_.link->standing();
  report.set_global_store_reachable(standing.ok());
  report.set_global_store_error(std::string(standing.message()));
  v1::Security* secured = report.mutable_security();
  secured->set_insecure(options_.insecure);
  if (options_.credentials != nullptr) {
    const security::Certificate own = options_.credentials->identity().self();
    secured->set_name(own.name.ToString());
    *secured->mutable_certificate_ends() = rpc::ToProto(own.not_after);
  }
  FillPools(report.mutable_pools());
  uint32_t leases = 0;
  const std::vector<ReplicaInfo> replicas = options_.engine->ListReplicas();
  for (const ReplicaInfo& replica : replicas) leases += replica.leases;
  report.set_replicas(static_cast<uint32_t>(replicas.size()));
  report.set_leases(leases);
  report.set_tickets(options_.handles->tickets());
  report.set_handle_connections(options_.handles->connections());
  report.set_active_transfers(options_.engine->active_ingests());
  report.set_active_servings(options_.servings->active());
  FillTransfers(&report);
  if (options_.artifact_store != nullptr) {
    for (const DamagedFile& file : options_.artifact_store->Damaged()) {
      v1::DamagedFile* damaged = report.add_damaged_files();
      damaged->set_path(file.path);
      damaged->set_artifact_id(file.artifact_id);
      *damaged->mutable_error() = rpc::ToProto(file.error);
    }
  }
  return report;
}

}  // namespace tensorcast::daemon
