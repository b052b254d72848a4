// What happens when grants are forged, and when the parts of a cluster come and go.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/steady_time.h"
#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::HasSubstr;

bool SameBytes(std::span<const std::byte> a, const std::vector<std::byte>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

client::PutResult Import(TestCluster& cluster, TestNode& node, const TestArtifact& artifact,
                         const client::PutOptions& options = {}) {
  auto put = node.client().Import(Soon(), cluster.WriteModel("model", artifact), options);
  EXPECT_TRUE(put.ok()) << put.status();
  return put.ok() ? *put : client::PutResult{};
}

TEST(Failure, Shutdown_WaitsForRunningTransfers) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(4, 6, kTestChunkBytes);
  const client::PutResult put = Import(cluster, a, artifact);
  b.gate().Hold(1);
  auto get = b.client().StartGet(Soon(), put.artifact_id, {});
  b.gate().AwaitHeld(1);
  std::thread stopping([&] { a.Stop(absl::Seconds(30)); });
  ASSERT_TRUE(Eventually([&] {
    auto status = b.admin().GetClusterStatus(Soon());
    return status.ok() && std::any_of(status->nodes().begin(), status->nodes().end(),
                                      [](const v1::Node& node) { return node.draining(); });
  }));
  b.gate().Release();
  auto replica = get->Wait(SteadyNow() + absl::Seconds(30));
  stopping.join();
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  EXPECT_EQ((*replica)->transfer()->refetched_chunks, 0);
}

TEST(Failure, ForgedGrant_OpensNeitherPullNorLease) {
  constexpr char kTokenVersion = 3;  // so that it is the signature that is missed
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const client::PutResult put = Import(cluster, a, MakeChunkedArtifact(5, 2, kTestChunkBytes));
  auto peer =
      daemon::MakePeerClient([](const daemon::PeerAddress& peer) { return rpc::MakeChannel(peer.address); });

  v1::OpenPullRequest pull;
  pull.set_grant_id("t");
  pull.set_replica_id(put.replica_id);
  pull.set_lane("loopback");
  pull.set_grant_token(std::string(100, kTokenVersion));
  EXPECT_EQ(peer->OpenPull(Soon(), a.server().addresses().front(), pull).status().code(),
            absl::StatusCode::kPermissionDenied);

  v1::AttachReplicaRequest attach;
  attach.set_grant_id("t");
  attach.set_replica_id(put.replica_id);
  attach.set_grant_token(std::string(100, kTokenVersion));
  EXPECT_EQ(peer->AttachReplica(Soon(), a.server().addresses().front(), attach).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(a.admin().GetStatus(Soon())->active_servings(), 0);
  EXPECT_EQ(a.admin().GetStatus(Soon())->leases(), 0);
}

TEST(Failure, GlobalStoreAway_LocalReplicaCanBeAttachedNotEvicted) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const TestArtifact artifact = MakeChunkedArtifact(8, 3, kTestChunkBytes);
  const client::PutResult put = Import(cluster, a, artifact);
  cluster.StopGlobalStore();
  auto replica = a.client().Get(Soon(), put.artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(SameBytes((*replica)->image(), artifact.image));
  EXPECT_TRUE(Eventually([&] { return !a.admin().GetStatus(Soon())->global_store_reachable(); }));
  // The last copy stays while the global store cannot be asked.
  replica->reset();
  EXPECT_EQ(a.admin().EvictReplica(Soon(), put.replica_id, /*force=*/false).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(a.admin().ListReplicas(Soon(), put.artifact_id)->size(), 1);
}

TEST(Failure, PutUnderTakenKey_LeavesNothing) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  Import(cluster, a, MakeChunkedArtifact(9, 2, kTestChunkBytes), {.key = "taken"});
  const TestArtifact other = MakeChunkedArtifact(10, 2, kTestChunkBytes);
  const absl::Status status = a.client()
                                  .Import(Soon(), cluster.WriteModel("other", other),
                                          {.key = "taken", .expected_revision = 0, .durable = true})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(a.admin().ListReplicas(Soon(), "")->size(), 1);
  EXPECT_EQ(a.admin().GetClusterStatus(Soon())->artifacts(), 1);
}

TEST(Failure, PathOutsideImportRoots_IsDenied) {
  TestCluster cluster;
  const auto remote = RemoteClient(cluster.AddNode("a"));
  const TestArtifact artifact = MakeChunkedArtifact(11, 2, kTestChunkBytes);
  const std::string path = cluster.WriteModel("inside", artifact);
  const std::string outside = cluster.folder() + "/outside.safetensors";
  std::filesystem::rename(path, outside);
  std::filesystem::create_symlink(outside, cluster.folder() + "/models/link.safetensors");
  for (const std::string& tried : {outside, cluster.folder() + "/models/link.safetensors",
                                   cluster.folder() + "/models/../outside.safetensors"}) {
    EXPECT_EQ(remote->Import(Soon(), tried, {}).status().code(), absl::StatusCode::kPermissionDenied)
        << tried;
  }
  EXPECT_EQ(remote->Import(Soon(), cluster.folder() + "/models/none.safetensors", {}).status().code(),
            absl::StatusCode::kPermissionDenied)
      << "in the same words as what is outside";
}

TEST(Failure, ModelIndexOutsideImportRoots_IsRefused) {
  namespace fs = std::filesystem;
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  const auto remote = RemoteClient(a);
  const std::string outside = cluster.folder() + "/outside.safetensors";
  fs::rename(cluster.WriteModel("m", MakeChunkedArtifact(11, 2, kTestChunkBytes)), outside);
  const std::string model = cluster.folder() + "/models/sharded";
  fs::create_directories(model);
  const auto import_with_shard = [&](const std::string& shard) {
    std::ofstream(model + "/model.safetensors.index.json") << R"({"weight_map":{"w":")" << shard << "\"}}";
    return remote->Import(Soon(), model, {}).status().code();
  };
  EXPECT_EQ(import_with_shard("../../outside.safetensors"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(import_with_shard(outside), absl::StatusCode::kInvalidArgument);
  fs::create_symlink(outside, model + "/link.safetensors");
  EXPECT_EQ(import_with_shard("link.safetensors"), absl::StatusCode::kPermissionDenied);
  fs::create_directory_symlink(cluster.folder(), model + "/up");
  EXPECT_EQ(import_with_shard("up/outside.safetensors"), absl::StatusCode::kPermissionDenied);

  // A hub's cache may link from a snapshot into its blobs; where those lie outside of the roots, they are
  // not read.
  const std::string snapshot = cluster.folder() + "/hub/snapshots/main";
  fs::create_directories(snapshot);
  fs::create_directories(cluster.folder() + "/hub/blobs");
  fs::rename(outside, cluster.folder() + "/hub/blobs/0123");
  fs::create_symlink("../../blobs/0123", snapshot + "/model.safetensors");
  fs::create_directory_symlink(snapshot, cluster.folder() + "/models/snapshot");
  EXPECT_EQ(remote->Import(Soon(), cluster.folder() + "/models/snapshot", {}).status().code(),
            absl::StatusCode::kPermissionDenied);
  const auto remote_b = RemoteClient(
      cluster.AddNode("b", [&](daemon::DaemonOptions& options) { options.disk.import_roots = {snapshot}; }));
  EXPECT_EQ(remote_b->Import(Soon(), snapshot, {}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(a.admin().ListReplicas(Soon(), "")->empty());
}

TEST(Failure, DeletedArtifact_IsRemovedFromEveryNode) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const client::PutResult put =
      Import(cluster, a, MakeChunkedArtifact(12, 3, kTestChunkBytes), {.durable = true});
  ASSERT_TRUE(b.client().Get(Soon(), put.artifact_id, {.attach = false}).ok());
  ASSERT_TRUE(Eventually([&] { return a.admin().GetClusterStatus(Soon())->replicas() == 3; }));
  ASSERT_TRUE(a.admin().DeleteArtifact(Soon(), put.artifact_id).ok());
  EXPECT_TRUE(Eventually([&] {
    return a.admin().ListReplicas(Soon(), "")->empty() && b.admin().ListReplicas(Soon(), "")->empty();
  }));
  EXPECT_EQ(b.client().Get(Soon(), put.artifact_id, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Failure, LastCopy_IsEvictedOnlyByForce) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(13, 2, kTestChunkBytes);
  const std::byte* bytes = artifact.image.data();
  const client::PutTensor tensor{
      .name = "w", .shape = {artifact.image.size()}, .bytes = {bytes, artifact.image.size()}};
  auto put = a.client().Put(Soon(), {&tensor, 1}, {}, {});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(a.admin().EvictReplica(Soon(), put->replica_id, false).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a.admin().EvictReplica(Soon(), put->replica_id, true).ok());
  EXPECT_EQ(a.admin().EvictReplica(Soon(), put->replica_id, true).code(), absl::StatusCode::kNotFound);
}

TEST(Failure, SecondDaemonInSameStateDirectory_DoesNotStart) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a");
  auto second = daemon::DaemonServer::Start({.name = "second",
                                             .state_dir = cluster.folder() + "/a",
                                             .global_store = cluster.global_store().address()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another daemon uses the directory"));
  EXPECT_TRUE(a.admin().GetStatus(Soon()).ok());
}

TEST(Failure, CancelledGet_EndsTransferAndGrantAndKeepsPartialReplica) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(cluster, a, MakeChunkedArtifact(15, 6, kTestChunkBytes));
  b.gate().Hold(1);
  auto get = b.client().StartGet(Soon(), put.artifact_id, {});
  b.gate().AwaitHeld(1);
  get->Cancel();
  EXPECT_EQ(get->Wait(SteadyNow() + absl::Seconds(30)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] {
    return b.admin().GetStatus(Soon())->active_transfers() == 0 &&
           a.admin().GetStatus(Soon())->active_servings() == 0 &&
           a.admin().GetClusterStatus(Soon())->active_grants() == 0;
  }));
  const auto held = b.admin().ListReplicas(Soon(), "");
  ASSERT_TRUE(held.ok()) << held.status();
  for (const v1::Replica& left : *held) {
    EXPECT_EQ(left.state(), v1::REPLICA_STATE_PARTIAL) << "what was there, for the next time";
  }
}

}  // namespace
}  // namespace tensorcast::testing
