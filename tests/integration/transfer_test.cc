// An artifact made on one node and wanted on another: every way from here to there gives the same bytes.
#include <algorithm>
#include <thread>

#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool SameBytes(std::span<const std::byte> a, const std::vector<std::byte>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// Imports a model of `chunks` chunks on the node and returns its id.
std::string Import(TestCluster& cluster, TestNode& node, const TestArtifact& artifact,
                   const client::PutOptions& options = {}) {
  auto put = node.client().Import(Soon(), cluster.WriteModel("model", artifact), options);
  EXPECT_TRUE(put.ok()) << put.status();
  return put.ok() ? put->artifact_id : "";
}

TEST(Transfer, ImportedModel_IsMaterializedOnAnotherHost) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(1, 9, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);

  auto replica = b.client().Get(Soon(), id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  EXPECT_THAT(LanesOf((*replica)->transfer()), ElementsAre("loopback"));
  EXPECT_EQ((*replica)->transfer()->verified_chunks, artifact.layout.chunk_count());
  EXPECT_TRUE(Eventually([&] { return a.admin().GetStatus(Soon())->active_servings() == 0; }));
  EXPECT_TRUE(Eventually([&] { return a.admin().GetClusterStatus(Soon())->active_grants() == 0; }));
}

TEST(Transfer, DaemonsOnSameHost_AttachInsteadOfPulling) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  TestNode& b = cluster.AddNode("b");
  const TestArtifact artifact = MakeChunkedArtifact(2, 9, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);

  auto replica = b.client().Get(Soon(), id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  EXPECT_THAT(LanesOf((*replica)->transfer()), ElementsAre("local"));
  EXPECT_TRUE(Eventually([&] { return a.admin().GetStatus(Soon())->leases() == 0; }));
}

TEST(Transfer, ForcedLane_IsUsedAndUnknownLaneIsRefused) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  TestNode& b = cluster.AddNode("b");
  const TestArtifact artifact = MakeChunkedArtifact(3, 5, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);

  auto pulled = b.client().Get(Soon(), id, {.lane = "loopback"});
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_THAT(LanesOf((*pulled)->transfer()), ElementsAre("loopback"));
  EXPECT_TRUE(SameBytes((*pulled)->image(), artifact.image));
  EXPECT_EQ(b.client().Get(Soon(), id, {.location = "disk", .lane = "warp"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Transfer, ForcedLocalLaneAcrossHosts_FailsAndNamesLane) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const std::string id = Import(cluster, a, MakeChunkedArtifact(4, 2, kTestChunkBytes));
  const absl::Status status = b.client().Get(Soon(), id, {.lane = "local"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("local"));
}

TEST(Transfer, AttachOnSameHostFails_FallsBackToPull) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  // To the global store both are on one host; the receiver may not use the source's socket.
  TestNode& b = cluster.AddNode("b");
  const TestArtifact artifact = MakeChunkedArtifact(5, 5, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);
  ASSERT_EQ(rename(a.server().handle_socket().c_str(), (cluster.folder() + "/hidden").c_str()), 0);

  auto pulled = b.client().Get(Soon(), id, {});
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_THAT(LanesOf((*pulled)->transfer()), ElementsAre("loopback"));
  EXPECT_TRUE(SameBytes((*pulled)->image(), artifact.image));
}

TEST(Transfer, GpuReplica_HasSameBytesAndServesOthers) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  TestNode& c = cluster.AddNode("c", OnItsOwnHost);
  const TestArtifact artifact =
      MakeChunkedArtifact(6, 6, kTestChunkBytes);  // more than the staging buffers hold
  const std::string id = Import(cluster, a, artifact);
  ASSERT_TRUE(b.client().Get(Soon(), id, {.location = "gpu:0", .attach = false}).ok());
  {
    auto lease = b.server().engine().LeaseArtifact(id, {LocationKind::kGpu, 0});
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::vector<std::byte> bytes(artifact.image.size());
    auto stream = b.devices().CreateStream(0);
    ASSERT_TRUE((*stream)->CopyToHost(bytes.data(), (*lease)->memory().device, bytes.size()).ok());
    ASSERT_TRUE((*stream)->Synchronize().ok());
    EXPECT_TRUE(SameBytes(bytes, artifact.image));
  }
  a.Stop();  // only the GPU has it now
  ASSERT_TRUE(Eventually([&] { return c.admin().GetClusterStatus(Soon())->replicas() == 1; }));
  auto replica = c.client().Get(Soon(), id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
}

TEST(Transfer, DiskReplica_SurvivesDaemonRestartAndServesOthers) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(7, 6, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact, {.durable = true});
  a.Stop();
  cluster.StartNode(a, OnItsOwnHost);

  auto replica = b.client().Get(Soon(), id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  const auto held = a.admin().ListReplicas(Soon(), id);
  ASSERT_TRUE(held.ok());
  ASSERT_EQ(held->size(), 1);
  EXPECT_EQ(held->front().location().kind(), v1::LOCATION_KIND_DISK);
}

TEST(Transfer, NoReplicaLeft_ImportedFilesAreReadAgain) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(8, 5, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);
  a.Stop();
  cluster.StartNode(a, OnItsOwnHost);
  ASSERT_TRUE(a.admin().ListReplicas(Soon(), "")->empty());

  auto replica = a.client().Get(Soon(), id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  EXPECT_THAT(LanesOf((*replica)->transfer()), ElementsAre("disk"));
}

TEST(Transfer, FilesChangedSinceImport_AreNotUsedAsSource) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  const std::string id = Import(cluster, a, MakeChunkedArtifact(9, 5, kTestChunkBytes));
  a.Stop();
  cluster.WriteModel("model", MakeChunkedArtifact(10, 5, kTestChunkBytes));
  cluster.StartNode(a, OnItsOwnHost);
  const absl::Status status = a.client().Get(Soon(), id, {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the file changed or was replaced after its import"));
}

TEST(Transfer, ConcurrentGetsOfOneReplica_ShareOneTransfer) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(11, 9, kTestChunkBytes);
  const std::string id = Import(cluster, a, artifact);
  b.gate().Hold();
  std::vector<std::unique_ptr<client::PendingGet>> gets;
  for (int i = 0; i < 8; ++i) gets.push_back(b.client().StartGet(Soon(), id, {}));
  b.gate().AwaitHeld(1);
  const v1::GetStatusResponse receiver = *b.admin().GetStatus(Soon());
  EXPECT_EQ(receiver.active_transfers(), 1);
  ASSERT_EQ(receiver.running_transfers_size(), 1);
  EXPECT_EQ(receiver.running_transfers(0).artifact_id(), id);
  EXPECT_EQ(receiver.running_transfers(0).bytes_total(), artifact.image.size());
  b.gate().Release();
  for (const auto& get : gets) {
    auto replica = get->Wait(SteadyNow() + absl::Seconds(30));
    ASSERT_TRUE(replica.ok()) << replica.status();
    EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  }
  const v1::GetStatusResponse after = *b.admin().GetStatus(Soon());
  EXPECT_EQ(after.running_transfers_size(), 0);
  ASSERT_EQ(after.recent_transfers_size(), 1);
  ASSERT_EQ(after.lanes_size(), 1);
  EXPECT_EQ(after.lanes(0).bytes_received(), artifact.image.size());

  // The source tells of the same pull, under the same transport.
  const auto served = [&] { return *a.admin().GetStatus(Soon()); };
  EXPECT_EQ(served().lanes(0).bytes_served(), artifact.image.size());
  ASSERT_EQ(served().servings_size(), 1);
  EXPECT_EQ(served().servings(0).grant_id(), after.recent_transfers(0).stages(0).grant_id());
  EXPECT_TRUE(Eventually([&] { return served().servings(0).has_closed(); }));
}

}  // namespace
}  // namespace tensorcast::testing
