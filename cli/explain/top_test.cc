#include "cli/explain/top.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "cli/explain/test_reports.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain::top_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Node MakeNode(const std::string& name) {
  v1::Node node;
  node.set_name(name);
  node.set_node_id(name + "-0123456789");
  node.set_grpc_address("10.0.0.1:7001");
  node.add_lanes("ucx");
  v1::Pool* pool = node.add_pools();
  pool->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  pool->set_capacity_bytes(1 << 30);
  pool->set_used_bytes(1 << 29);
  return node;
}

TopView MakeView() {
  TopView view{.now = At(1000), .window = absl::Seconds(10)};
  view.cluster.emplace().set_artifacts(3);
  view.cluster->set_metadata_store("sqlite");
  NodeView receiver{.node = MakeNode("node-1")};
  receiver.status.emplace().set_active_transfers(2);
  *receiver.status->mutable_pools() = receiver.node.pools();
  *receiver.status->add_recent_transfers() = rpc::ToProto(MakeReport());
  v1::LaneTotal* lane = receiver.status->add_lanes();
  lane->set_lane("ucx");
  lane->set_bytes_received(64'000'000);
  view.nodes = {{.node = MakeNode("node-0"), .problem = "connection refused"}, receiver};
  for (const NodeView& node : view.nodes) *view.cluster->add_nodes() = node.node;
  return view;
}

TEST(RenderTop, RenderTop_ShowsNodesPoolsFlowsAndTransfers) {
  EXPECT_EQ(RenderTop(MakeView()), R"(tensorcast top  2023-11-14 22:13:21 UTC
2 nodes, 3 artifacts, 0 keys, 0 replicas, 0 grants running, metadata in sqlite

node-0 (node-0-0) 10.0.0.1:7001  lanes ucx
  cpu     [###############               ]  50 %  512.00 MiB of 1.00 GiB, pinned 0 B, max so far 0 B
  no details: connection refused

node-1 (node-1-0) 10.0.0.1:7001  lanes ucx
  cpu     [###############               ]  50 %  512.00 MiB of 1.00 GiB, pinned 0 B, max so far 0 B
  running 2 transfers, 0 servings; 0 replicas, 0 leases, 0 connections
  ucx so far: 61.04 MiB received, 0 B served

under way
  nothing

received in the last 10s
by      lane  from        bytes  transfers      rate  rate moving
node-1  ucx   node-0  61.04 MiB          1  6.4 MB/s    1.07 GB/s

last transfers (tensorcast explain TRANSFER --daemon NODE)
transfer  node    to         bytes  seconds       rate  lane  from    bounded by  result
11aa22bb  node-1  gpu:0  61.04 MiB    0.100  0.64 GB/s  ucx   node-0  fetch       ok
)");
}

// Half done within 100 ms.
TransferReport MakeRunning() {
  TransferReport report = MakeReport();
  report.transfer_id = "22bb33cc-1";
  report.bytes = report.bytes_total / 2;
  for (StageReport& stage : report.stages) stage.bytes /= 2;
  return report;
}

TEST(RenderTop, UnhealthyGpus_AreShown) {
  TopView view = MakeView();
  view.nodes[0].node.add_unhealthy_devices(1);
  EXPECT_THAT(RenderTop(view),
              HasSubstr("max so far 0 B\n  UNHEALTHY  gpu:1 gets no replicas\n  no details"));
  view.nodes[1].status->mutable_node()->add_unhealthy_devices(0);
  EXPECT_THAT(RenderTop(view), HasSubstr("  UNHEALTHY  gpu:0 gets no replicas\n  running 2 transfers"));
}

TEST(RenderTop, RunningTransfers_ShowRateSincePreviousFrame) {
  TopView view = MakeView();
  view.now = At(100);
  v1::GetStatusResponse& receiver = *view.nodes[1].status;
  receiver.clear_recent_transfers();
  *receiver.add_running_transfers() = rpc::ToProto(MakeRunning());
  TransferReport waiting{.transfer_id = "33cc44dd-1", .queued = At(90), .end = At(100)};
  waiting.bytes_total = 1 << 20;
  *receiver.add_running_transfers() = rpc::ToProto(waiting);
  // 32 MB within the 80 ms that something moved or could have.
  EXPECT_THAT(RenderTop(view), HasSubstr(R"(
under way
transfer  node    to     done                                       seconds       rate  lane  from
22bb33cc  node-1  gpu:0  [##########          ]  50 % of 61.04 MiB    0.100  0.40 GB/s  ucx   node-0
33cc44dd  node-1  cpu    [                    ]    0 % of 1.00 MiB    0.010          -        (waits for its turn)
)"));
  // And to the flows of the last seconds.
  EXPECT_THAT(RenderTop(view), HasSubstr("node-1  ucx   node-0  30.52 MiB          1"));

  // The frame after: all 32 MB came within the last 20 ms.
  view.before = {{"22bb33cc-1", {.bytes = 0, .at = At(80)}}};
  EXPECT_THAT(RenderTop(view), HasSubstr("0.100  1.60 GB/s  ucx"));
  EXPECT_EQ(SeenIn(view).at("22bb33cc-1").bytes, 32'000'000u);
  EXPECT_EQ(SeenIn(view).at("22bb33cc-1").at, At(100));
}

TEST(RenderTop, SourcesTable_PrefersReportOfReceiverToThatOfSource) {
  TopView view = MakeView();
  view.now = At(100);
  TransferReport running = MakeRunning();
  for (const char* node : {"node-0", "node-2"}) {
    SourceReport source{.source = {SourceType::kRemote, "tcp", node, absl::StrCat("grant-", node)},
                        .filling = std::string_view(node) == "node-2",
                        .joined = At(20),
                        .bytes = 16'000'000};
    running.sources.push_back(source);
  }
  SourceReport gone = running.sources.front();
  gone.source.grant_id = "ended";
  gone.left = At(50);
  running.sources.push_back(gone);
  v1::GetStatusResponse& receiver = *view.nodes[1].status;
  *receiver.add_running_transfers() = rpc::ToProto(running);
  // It serves a node that does not answer, and one that says so itself.
  v1::ServeReport* serving = receiver.add_servings();
  serving->set_grant_id("to-node-0");
  serving->set_receiver_node_id("node-0-0123456789");
  serving->set_lane("tcp");
  serving->set_bytes(8'000'000);
  *receiver.add_servings() = *serving;
  receiver.mutable_servings(1)->set_grant_id("grant-node-2");
  *receiver.add_servings() = *serving;
  receiver.mutable_servings(2)->set_grant_id("over");
  receiver.mutable_servings(2)->mutable_closed();
  view.before = {{"grant-node-2", {.bytes = 0, .at = At(60)}}, {"to-node-0", {.bytes = 0, .at = At(60)}}};
  EXPECT_THAT(RenderTop(view), AllOf(HasSubstr("tcp   2 sources\n"), HasSubstr(R"(
sources and receivers
from    to      lane  was      transfer      bytes       rate
node-2  node-1  tcp   filling  22bb33cc  15.26 MiB  0.40 GB/s
node-0  node-1  tcp   ready    22bb33cc  15.26 MiB  0.20 GB/s
node-1  node-0  tcp   -               -   7.63 MiB  0.20 GB/s
)")));
  EXPECT_THAT(RenderTop(view, {.feeds = 1}), HasSubstr("  and 2 more\n"));
  EXPECT_EQ(SeenIn(view).at("grant-node-2").bytes, 16'000'000u);
  EXPECT_EQ(SeenIn(view).at("to-node-0").at, view.now);
}

TEST(RenderTop, GlobalStoreAway_TopShowsProblemAndNodes) {
  TopView view = MakeView();
  view.cluster.reset();
  view.problem = "deadline exceeded";
  EXPECT_THAT(RenderTop(view), AllOf(HasSubstr("deadline exceeded"), HasSubstr("node-1")));
}

TEST(RenderTop, OldTransfer_IsListedWithoutFlow) {
  TopView view = MakeView();
  view.now += absl::Hours(1);
  EXPECT_THAT(RenderTop(view), AllOf(HasSubstr("10s\n  nothing"), HasSubstr("11aa22bb")));
}

TEST(RenderTop, TransferLimitOfZero_HidesTransfers) {
  TopView view = MakeView();
  EXPECT_THAT(RenderTop(view, {.transfers = 0, .flows = 10}), Not(HasSubstr("11aa22bb")));
}

TEST(RenderTop, EmptyView_IsRenderedAsText) { EXPECT_THAT(RenderTop(TopView{}), HasSubstr("none")); }

}  // namespace
}  // namespace tensorcast::explain::top_test
