#include "daemon/service/status_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/posix/host_facts.h"
#include "base/text.h"
#include "core/device/pci_place.h"
#include "core/memory/host_limits.h"
#include "daemon/node/node_messages.h"
#include "otel/api/exporter_states.h"
#include "rpc/convert/convert.h"
#include "rpc/credentials.h"

namespace tensorcast::daemon {
namespace {

// Sent to other receivers between this serving's first request and its last byte: of a serving that overlaps
// that time, the bytes in proportion.
uint64_t BytesToOthers(const v1::ServeReport& own, const std::vector<v1::ServeReport>& all) {
  const auto begin = [](const v1::ServeReport& served) { return rpc::FromProto(served.first_request()); };
  const auto end = [](const v1::ServeReport& served) { return rpc::FromProto(served.last_completion()); };
  double bytes = 0;
  for (const v1::ServeReport& other : all) {
    const absl::Duration took = end(other) - begin(other);
    const absl::Duration both = std::min(end(own), end(other)) - std::max(begin(own), begin(other));
    if (other.grant_id() == own.grant_id() || took <= absl::ZeroDuration()) continue;
    if (both > absl::ZeroDuration()) {
      bytes += static_cast<double>(other.bytes()) * absl::FDivDuration(both, took);
    }
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace

void StatusReporter::AddPool(Location location, const PoolStats& stats,
                             google::protobuf::RepeatedPtrField<v1::Pool>* out) const {
  v1::Pool* pool = out->Add();
  *pool->mutable_location() = daemon::ToProto(location, options_.devices);
  pool->set_capacity_bytes(stats.capacity_bytes);
  pool->set_used_bytes(stats.used_bytes);
  const ReplicaBytes replicas = options_.engine->replica_bytes(location);
  pool->set_pinned_bytes(replicas.held);
  pool->set_partial_replicas(static_cast<uint32_t>(replicas.partial_replicas));
  pool->set_partial_bytes(replicas.partial);
  pool->set_high_water_bytes(stats.high_water_bytes);
  pool->set_failed_allocations(stats.failed_allocations);
  pool->set_evictions(replicas.evictions);
}

void StatusReporter::FillTransfers(v1::GetStatusResponse* out) const {
  // In this order: a transfer that ends between the two is in both, and counts as ended.
  const std::vector<TransferReport> running = options_.engine->RunningTransfers();
  const std::vector<TransferReport> ended = options_.transfers->Newest();
  BytesByLane received = options_.transfers->bytes();
  for (const TransferReport& report : running) {
    if (std::ranges::find(ended, report.transfer_id, &TransferReport::transfer_id) != ended.end()) continue;
    *out->add_running_transfers() = daemon::ToProto(report, options_.devices);
    AddBytes(report, &received);
  }
  for (const TransferReport& report : ended) {
    *out->add_recent_transfers() = daemon::ToProto(report, options_.devices);
  }
  for (v1::ServeReport& report : options_.servings->Reports()) *out->add_servings() = std::move(report);
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
  AddPool({LocationKind::kCpu}, options_.pool->stats(), out);
  for (const DeviceInfo& device : options_.devices->devices()) {
    AddPool({LocationKind::kGpu, device.ordinal}, options_.engine->device_pool_stats(device.ordinal), out);
  }
}

void StatusReporter::FillDevices(google::protobuf::RepeatedPtrField<v1::DeviceStatus>* out) const {
  for (const DeviceInfo& device : options_.devices->devices()) {
    v1::DeviceStatus* status = out->Add();
    status->set_ordinal(device.ordinal);
    status->set_unhealthy(std::string(options_.devices->CheckHealth(device.ordinal).message()));
    status->set_pci_bus_id(device.pci_bus_id);
    const PciPlace place = FindPciPlace(options_.sysfs, device.pci_bus_id);
    if (place.numa_node.has_value()) status->set_numa_node(*place.numa_node);
    for (const std::string& nic : place.nearest_nics) status->add_nearest_nics(nic);
  }
}

void StatusReporter::FillUnhealthyDevices(google::protobuf::RepeatedField<int32_t>* out) const {
  for (const DeviceInfo& device : options_.devices->devices()) {
    if (!options_.devices->CheckHealth(device.ordinal).ok()) out->Add(device.ordinal);
  }
}

v1::TransferHop StatusReporter::HopOf(absl::FunctionRef<bool(const TransferReport&)> wanted) const {
  v1::TransferHop hop;
  hop.set_node(options_.node->Describe().name());
  hop.mutable_limits()->set_send(options_.send_limit);
  hop.mutable_limits()->set_receive(options_.receive_limit);
  // One that ends between the two looks is found by the second.
  for (const TransferReport& report : options_.engine->RunningTransfers()) {
    if (!wanted(report)) continue;
    *hop.mutable_transfer() = daemon::ToProto(report, options_.devices);
    hop.set_under_way(true);
  }
  if (!hop.under_way()) {
    for (const TransferReport& report : options_.transfers->Newest()) {
      if (!wanted(report)) continue;
      *hop.mutable_transfer() = daemon::ToProto(report, options_.devices);
      break;
    }
  }
  hop.set_replica_id(hop.transfer().replica_id());
  return hop;
}

std::optional<v1::TransferHop> StatusReporter::FindTransfer(const std::string& transfer_id) const {
  v1::TransferHop hop =
      HopOf([&](const TransferReport& report) { return report.transfer_id == transfer_id; });
  return hop.has_transfer() ? std::make_optional(std::move(hop)) : std::nullopt;
}

// Only pulls under grants that the request names are told: a receiver knows its own grants.
v1::TransferHop StatusReporter::DescribeHop(const v1::DescribeHopRequest& request) const {
  v1::TransferHop hop = HopOf([&](const TransferReport& report) {
    return !request.replica_id().empty() && report.replica_id == request.replica_id();
  });
  hop.set_replica_id(request.replica_id());
  const std::set<std::string_view> grants(request.grant_ids().begin(), request.grant_ids().end());
  const std::vector<v1::ServeReport> all = options_.servings->Reports();
  for (const v1::ServeReport& report : all) {
    if (!grants.contains(report.grant_id())) continue;
    *hop.add_servings() = report;
    hop.mutable_servings(hop.servings_size() - 1)->set_other_bytes(BytesToOthers(report, all));
  }
  return hop;
}

void StatusReporter::SetEndpoints(std::vector<rpc::EndpointAccess> endpoints) {
  absl::MutexLock lock(&mutex_);
  endpoints_ = std::move(endpoints);
}

void StatusReporter::FillSecurity(v1::Security* out) const {
  if (options_.credentials != nullptr) {
    const security::Certificate own = options_.credentials->identity().self();
    out->set_name(own.name.ToString());
    *out->mutable_certificate_ends() = rpc::ToProto(own.not_after);
  }
  absl::MutexLock lock(&mutex_);
  for (const rpc::EndpointAccess& endpoint : endpoints_) {
    v1::Access* access = out->add_access();
    access->set_endpoint(endpoint.endpoint);
    access->set_callers(endpoint.callers);
    access->set_role(endpoint.role);
    if (endpoint.in_clear) out->set_insecure(true);
  }
}

void StatusReporter::FillHost(v1::HostFacts* out) const {
  const HostFacts facts = ReadHostFacts(options_.proc, options_.sysfs);
  const HostLimits memory = ReadHostLimits();
  *out->mutable_clock() = rpc::ToProto(absl::Now());
  out->set_descriptors_open(facts.descriptors_open);
  out->set_descriptors_max(facts.descriptors_max);
  out->set_locked_memory_max(facts.locked_memory_max);
  out->set_cpus(facts.cpus);
  out->set_memory_bytes(memory.physical_bytes);
  out->set_available_memory_bytes(memory.available_bytes);
  // The pool's segments are memfds, which no file system bounds: shared_memory_bytes stays 0.
  out->set_free_huge_page_bytes(FreeHugePageBytes());
  out->set_software_version(options_.software_version);
  for (const LinkFacts& link : facts.links) {
    v1::HostFacts::Link* told = out->add_links();
    told->set_interface(link.interface);
    told->set_mbit(link.mbit);
  }
  for (const otel::ExporterState& exporter : otel::ExporterStates()) {
    v1::HostFacts::Exporter* told = out->add_exporters();
    told->set_signal(exporter.signal);
    told->set_endpoint(exporter.endpoint);
    // What a collector answered may be any bytes; the message takes UTF-8 alone.
    std::string storage;
    told->set_error(std::string(ValidUtf8(exporter.error, storage)));
    told->set_dropped(exporter.dropped);
  }
}

v1::GetStatusResponse StatusReporter::Report() const {
  v1::GetStatusResponse report;
  *report.mutable_node() = options_.node->Describe();
  const absl::StatusOr<std::string> nccl = options_.groups->Version();
  if (nccl.ok()) report.mutable_node()->set_nccl_version(*nccl);
  if (!nccl.ok()) report.mutable_node()->set_no_nccl(std::string(nccl.status().message()));
  FillUnhealthyDevices(report.mutable_node()->mutable_unhealthy_devices());
  report.set_global_store(options_.global_store_label);
  const absl::Status standing = options_.link->standing();
  report.set_global_store_reachable(standing.ok());
  report.set_global_store_error(std::string(standing.message()));
  FillSecurity(report.mutable_security());
  FillHost(report.mutable_host());
  report.mutable_limits()->set_send(options_.send_limit);
  report.mutable_limits()->set_receive(options_.receive_limit);
  FillPools(report.mutable_pools());
  FillDevices(report.mutable_devices());
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
  if (options_.conservation != nullptr) *report.mutable_conservation() = options_.conservation->status();
  if (options_.kept != nullptr) *report.mutable_kept_pool() = options_.kept->status();
  if (options_.damaged != nullptr) options_.damaged->Fill(report.mutable_damaged_replicas());
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
