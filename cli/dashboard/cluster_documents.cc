#include <algorithm>
#include <map>
#include <utility>

#include "cli/dashboard/document_maker.h"
#include "rpc/convert/convert.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

const char* KindOf(const v1::Location& location) {
  switch (location.kind()) {
    case v1::LOCATION_KIND_GPU:
      return "gpu";
    case v1::LOCATION_KIND_DISK:
      return "disk";
    default:
      return "cpu";
  }
}

}  // namespace

absl::StatusOr<json> Documents::Maker::Status(const Query& /*query*/) {
  json document = {{"version", options_.version}, {"nodes", 0}, {"problems", json::array()}};
  const auto daemon = Daemon();
  if (daemon.ok()) {
    document["daemon"] = StatusRow(**daemon);
  } else if (!absl::IsUnimplemented(daemon.status())) {  // a global store has no such call
    document["problems"].push_back(Problem("daemon", daemon.status()));
  }
  const auto cluster = Cluster();
  if (!cluster.ok()) {
    document["problems"].push_back(Problem("global store", cluster.status()));
    return document;
  }
  document["nodes"] = (*cluster)->nodes_size();
  // The leader's time is given in whole minutes, since a time that changes with each look would send the
  // document each time.
  v1::GetClusterStatusResponse counts = **cluster;
  counts.clear_nodes();
  if (counts.has_leads_for()) {
    counts.mutable_leads_for()->set_seconds(counts.leads_for().seconds() / 60 * 60);
    counts.mutable_leads_for()->set_nanos(0);
  }
  document["cluster"] = ToDocument(counts);
  return document;
}

absl::StatusOr<json> Documents::Maker::Zones(const Query& query) {
  json problems = json::array();
  TC_ASSIGN_OR_RETURN(std::vector<v1::Node> nodes, KnownNodes(&problems));
  std::erase_if(nodes, [&](const v1::Node& node) { return !IsIn(query, node); });
  const auto statuses = AskNodes(nodes);
  struct Rack {
    json row = {{"nodes", 0},
                {"draining", 0},
                {"unreachable", 0},
                {"unhealthy", 0},
                {"late", 0},
                {"asked", 0},
                {"protocol_versions", json::object()}};
    std::map<std::string, json> pools;
    double received = 0;
    double served = 0;
  };
  const auto add = [](json& row, const char* name, uint64_t value) {
    row[name] = row.value(name, uint64_t{0}) + value;
  };
  std::map<std::string, std::map<std::string, Rack>> zones;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const v1::Node& node = nodes[i];
    Rack& rack = zones[LabelOf(node, "zone")][LabelOf(node, "rack")];
    add(rack.row, "nodes", 1);
    add(rack.row, "draining", node.draining() ? 1 : 0);
    add(rack.row, "unreachable", node.unreachable() ? 1 : 0);
    add(rack.row, "unhealthy", node.unhealthy_devices().empty() ? 0 : 1);
    add(rack.row, "late", IsLate(node) ? 1 : 0);
    const std::string version = absl::StrCat(node.protocol_version());
    rack.row["protocol_versions"][version] = rack.row["protocol_versions"].value(version, 0) + 1;
    for (const v1::Pool& pool : node.pools()) {
      json& row = rack.pools[KindOf(pool.location())];
      row["kind"] = KindOf(pool.location());
      add(row, "pools", 1);
      add(row, "capacity_bytes", pool.capacity_bytes());
      add(row, "used_bytes", pool.used_bytes());
      add(row, "pinned_bytes", pool.pinned_bytes());
      add(row, "evictions", pool.evictions());
      add(row, "failed_allocations", pool.failed_allocations());
    }
    // Pools are known of every node, from its heartbeat. Rates are known of those nodes alone that were asked
    // twice.
    if (i >= statuses.size() || !statuses[i].ok()) continue;
    add(rack.row, "asked", 1);
    const NodeStatus& status = **statuses[i];
    if (!status.previous.has_value()) continue;
    const absl::Duration between = status.counters.at - status.previous->at;
    rack.received += RateOf(status.counters.received, status.previous->received, between);
    rack.served += RateOf(status.counters.served, status.previous->served, between);
  }
  json document = {{"zones", json::array()}, {"nodes", nodes.size()}, {"problems", std::move(problems)}};
  for (auto& [zone, racks] : zones) {
    json rows = json::array();
    for (auto& [name, rack] : racks) {
      rack.row["rack"] = name;
      rack.row["received_bytes_per_second"] = static_cast<uint64_t>(rack.received);
      rack.row["served_bytes_per_second"] = static_cast<uint64_t>(rack.served);
      rack.row["pools"] = json::array();
      for (auto& [kind, pool] : rack.pools) rack.row["pools"].push_back(std::move(pool));
      rows.push_back(std::move(rack.row));
    }
    document["zones"].push_back({{"zone", zone}, {"racks", std::move(rows)}});
  }
  document["not_asked"] = nodes.size() - statuses.size();
  TC_ASSIGN_OR_RETURN(document["status"], Status(query));
  document["status"].erase("daemon");  // it changes with every byte that moves; the page of the node shows it
  return document;
}

}  // namespace tensorcast::dashboard
