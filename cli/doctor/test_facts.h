// Facts of a healthy node and cluster, for tests to change.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"
#include "rpc/convert/convert.h"

namespace tensorcast::doctor {

inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline absl::Time TestNow() { return absl::FromUnixSeconds(1'800'000'000); }

inline NodeFacts WellNode(const std::string& name) {
  NodeFacts node{.listed = true, .round_trip = absl::Milliseconds(2), .asked = TestNow()};
  node.node.set_name(name);
  node.node.set_node_id("id-of-" + name);
  node.node.set_grpc_address("10.0.0.1:7001");
  node.node.set_protocol_version(2);
  v1::GetStatusResponse status;
  *status.mutable_node() = node.node;
  status.set_global_store("10.0.0.9:7000");
  status.set_global_store_reachable(true);
  v1::Pool* pool = status.add_pools();
  pool->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  pool->set_capacity_bytes(16 * kGiB);
  v1::HostFacts* host = status.mutable_host();
  *host->mutable_clock() = rpc::ToProto(TestNow());
  host->set_descriptors_open(100);
  host->set_descriptors_max(65536);
  host->set_locked_memory_max(64 << 10);
  host->set_memory_bytes(64 * kGiB);
  host->set_available_memory_bytes(40 * kGiB);
  host->set_software_version("1.2.3");
  node.status = std::move(status);
  return node;
}

inline Facts WellCluster() {
  Facts facts{.now = TestNow(), .version = "1.2.3", .daemon = "unix:/run/tensorcast/daemon.sock"};
  facts.nodes = {WellNode("a"), WellNode("b")};
  facts.probes = {{.from = "a", .to = "b", .round_trip = absl::Milliseconds(1)},
                  {.from = "b", .to = "a", .round_trip = absl::Milliseconds(1)}};
  facts.probed_nodes = 2;
  v1::GetClusterStatusResponse cluster;
  cluster.set_metadata_store("sqlite");
  facts.cluster = std::move(cluster);
  return facts;
}

MATCHER_P3(Finds, level, subject, words, "") {
  return arg.level == level && arg.subject == subject &&
         (arg.found + "; " + arg.change).find(words) != std::string::npos &&
         (level == Level::kOk) == arg.change.empty();
}

}  // namespace tensorcast::doctor
