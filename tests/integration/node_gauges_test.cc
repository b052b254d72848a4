// What a node's gauges say, read where they are made: nodes of one process report the same series.
#include "daemon/sources/peer_client.h"
#include "gtest/gtest.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/channel.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

namespace metrics = otel::metrics;
using otel::testing::ReadGauge;

TEST(NodeGauges, LeaseAndSessionGauges_CountByHolder) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(10, 3, kTestChunkBytes);
  auto put = a.client().Import(Soon(), cluster.WriteModel("model", artifact), {});
  ASSERT_TRUE(put.ok()) << put.status();
  const auto leases = [](const char* kind) { return ReadGauge(metrics::kLeasesActive.id(), {kind, "cpu"}); };
  const auto sessions = [](const char* kind) { return ReadGauge(metrics::kSessionsActive.id(), {kind}); };
  const auto pinned = [] { return ReadGauge(metrics::kPoolPinnedBytes.id(), {"cpu", ""}); };
  EXPECT_TRUE(Eventually([&] { return leases("ingest") == 0; }));
  const auto told = [&] { return a.admin().GetStatus(Soon())->pools(0).pinned_bytes(); };
  EXPECT_EQ(pinned(), 0);
  EXPECT_EQ(told(), 0);

  auto replica = a.client().Get(Soon(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ(leases("client"), 1);
  EXPECT_EQ(sessions("client"), 1);
  EXPECT_EQ(pinned(), 4 << 20) << "whole granules";
  EXPECT_EQ(told(), 4 << 20);
  ASSERT_EQ(a.client().SetPinned(Soon(), put->replica_id, true), absl::OkStatus());
  EXPECT_EQ(pinned(), 4 << 20) << "leased and pinned, and once there";
  replica->reset();
  EXPECT_TRUE(Eventually([&] { return leases("client") == 0; }));
  EXPECT_EQ(pinned(), 4 << 20);
  EXPECT_EQ(told(), 4 << 20);
  ASSERT_EQ(a.client().SetPinned(Soon(), put->replica_id, false), absl::OkStatus());
  EXPECT_EQ(told(), 0);
  EXPECT_TRUE(Eventually([&] { return leases("client") == 0 && sessions("client") == 0 && pinned() == 0; }));

  auto peer =
      daemon::MakePeerClient([](const daemon::PeerAddress& peer) { return rpc::MakeChannel(peer.address); });
  v1::AttachReplicaRequest request;
  request.set_replica_id(put->replica_id);
  ASSERT_TRUE(peer->AttachReplica(Soon(), a.server().addresses().front(), request).ok());
  EXPECT_EQ(leases("ticket"), 1);

  b.gate().Hold();
  auto pull = b.client().StartGet(Soon(), put->artifact_id, {.attach = false});
  b.gate().AwaitHeld(1);
  EXPECT_EQ(leases("pull"), 1);
  EXPECT_EQ(ReadGauge(metrics::kTransfersActive.id(), {}), 1);
  EXPECT_EQ(ReadGauge(metrics::kP2pSources.id(), {}), 1);
  EXPECT_EQ(ReadGauge(metrics::kTransferQueueLength.id(), {}), 0);
  b.gate().Release();
  ASSERT_TRUE(pull->Wait(Soon().deadline).ok());
  EXPECT_TRUE(Eventually([&] { return leases("pull") == 0; }));
}

TEST(NodeGauges, DiskAndQueueGauges_ShowDiskBytesAndWaitingIngests) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  auto put = a.client().Import(
      Soon(), cluster.WriteModel("model", MakeChunkedArtifact(20, 4, kTestChunkBytes)), {.durable = true});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_GT(ReadGauge(metrics::kDiskUsedBytes.id(), {}), 4 * kTestChunkBytes);
  EXPECT_GT(ReadGauge(metrics::kDiskFreeBytes.id(), {}), 0);

  TestNode& b = cluster.AddNode("b", [](daemon::DaemonOptions& options) {
    OnItsOwnHost(options);
    options.engine.max_concurrent_ingests = 1;
  });
  b.gate().Hold();
  auto first = b.client().StartGet(Soon(), put->artifact_id, {.attach = false});
  b.gate().AwaitHeld(1);
  auto second = b.client().StartGet(Soon(), put->artifact_id, {.location = "gpu:0", .attach = false});
  EXPECT_TRUE(Eventually([&] { return ReadGauge(metrics::kTransferQueueLength.id(), {}) == 1; }));
  b.gate().Release();
  EXPECT_TRUE(first->Wait(Soon().deadline).ok());
  EXPECT_TRUE(second->Wait(Soon().deadline).ok());
}

}  // namespace
}  // namespace tensorcast::testing
