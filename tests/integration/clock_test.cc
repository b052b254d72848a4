// The wall clock of a whole cluster set forward and back by hours, at the moments where time matters:
// deadlines, tickets, leases, grants and heartbeats are measured on a clock that cannot be set.
#include <algorithm>

#include "base/steady_time.h"
#include "base/testing/wall_clock.h"
#include "core/handles/handle_client.h"
#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

class Clock : public ::testing::TestWithParam<int> {
 protected:
  static absl::Duration Hours() { return absl::Hours(GetParam()); }

  client::PutResult Import(TestNode& node, uint64_t seed, const client::PutOptions& options = {}) {
    artifact_ = MakeChunkedArtifact(seed, 6, kTestChunkBytes);
    auto put = node.client().Import(Soon(), cluster_.WriteModel("model", artifact_), options);
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *put : client::PutResult{};
  }
  bool IsTheArtifact(const client::Replica& replica) const {
    return std::ranges::equal(replica.image(), artifact_.image);
  }
  // A ticket that no client has claimed yet.
  v1::AttachReplicaResponse Attach(TestNode& node, const std::string& replica_id) {
    const auto peer = daemon::MakePeerClient(
        [](const daemon::PeerAddress& peer) { return rpc::MakeChannel(peer.address); });
    v1::AttachReplicaRequest request;
    request.set_replica_id(replica_id);
    auto attached = peer->AttachReplica(Soon(), node.server().addresses().front(), request);
    EXPECT_EQ(attached.status(), absl::OkStatus());
    return attached.ok() ? *std::move(attached) : v1::AttachReplicaResponse();
  }

  TestCluster cluster_;
  TestArtifact artifact_;
};

TEST_P(Clock, ClockChange_DoesNotDisturbRunningTransferOrItsGrant) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, 1);
  b.gate().Hold(/*pass=*/2);
  auto get = b.client().StartGet(Soon(), put.artifact_id, {});
  b.gate().AwaitHeld(1);
  const WallClockSet wall_clock(Hours());
  // A round trip of every chore that looks at the time: heartbeats of both nodes, and the store's own.
  for (TestNode* node : {&a, &b}) ASSERT_TRUE(node->admin().GetClusterStatus(Soon()).ok());
  b.gate().Release();
  const auto replica = get->Wait(SteadyTime::InfiniteFuture());
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(IsTheArtifact(**replica));
  EXPECT_EQ((*replica)->transfer()->refetched_chunks, 0);
  EXPECT_LT((*replica)->transfer()->end - (*replica)->transfer()->start, absl::Minutes(5));
}

TEST_P(Clock, ClockSetBack_DeadlineStillExpiresOnTime) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const client::PutResult put = Import(a, 2);
  b.gate().Hold();
  auto get = b.client().StartGet(RequestContext::Background(absl::Seconds(2)), put.artifact_id, {});
  b.gate().AwaitHeld(1);
  const WallClockSet wall_clock(Hours());
  // By the clock that was set back it would be hours away.
  const auto replica = get->Wait(SteadyNow() + absl::Seconds(60));
  EXPECT_EQ(replica.status().code(), absl::StatusCode::kDeadlineExceeded) << replica.status();
  b.gate().Release();
  EXPECT_TRUE(Eventually([&] { return b.admin().GetStatus(Soon())->active_transfers() == 0; }));
}

TEST_P(Clock, ClockChange_NewGrantsAreValidAndHeartbeatsContinue) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  const WallClockSet wall_clock(Hours());
  const client::PutResult put = Import(a, 3, {.key = "k"});
  {
    const auto replica = b.client().Get(Soon(), "k", {});
    ASSERT_TRUE(replica.ok()) << replica.status();
    EXPECT_TRUE(IsTheArtifact(**replica));
  }
  // Heartbeats are what brings the news of a deletion.
  ASSERT_EQ(a.client().DeleteKey(Soon(), "k", std::nullopt), absl::OkStatus());
  ASSERT_EQ(a.admin().DeleteArtifact(Soon(), put.artifact_id), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] {
    return a.admin().ListReplicas(Soon(), "")->empty() && b.admin().ListReplicas(Soon(), "")->empty();
  }));
}

TEST_P(Clock, ClockChange_TicketStaysValidForItsLifetimeThenExpires) {
  TestNode& a = cluster_.AddNode("a");
  const client::PutResult put = Import(a, 4);
  const v1::AttachReplicaResponse claimed = Attach(a, put.replica_id);
  const v1::AttachReplicaResponse unclaimed = Attach(a, put.replica_id);
  const WallClockSet wall_clock(Hours());
  auto claim =
      ClaimedReplica::Claim(claimed.handle_socket(), claimed.ticket(), SteadyNow() + absl::Seconds(10));
  ASSERT_TRUE(claim.ok()) << claim.status();
  // The other ticket ends by itself, the lease that came of the first does not.
  EXPECT_TRUE(Eventually([&] { return a.admin().GetStatus(Soon())->tickets() == 0; }));
  EXPECT_EQ(a.admin().GetStatus(Soon())->leases(), 1);
  EXPECT_FALSE(
      ClaimedReplica::Claim(unclaimed.handle_socket(), unclaimed.ticket(), SteadyNow() + absl::Seconds(10))
          .ok());
}

TEST_P(Clock, ClockChange_DeadNodeIsStillDroppedAfterItsTtl) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  Import(a, 5);
  const WallClockSet wall_clock(Hours());
  cluster_.RestartGlobalStore();
  ASSERT_TRUE(Eventually([&] {
    const auto status = b.admin().GetClusterStatus(Soon());
    return status.ok() && status->nodes_size() == 2 && status->replicas() == 1;
  }));
  a.Stop();
  EXPECT_TRUE(Eventually([&] { return b.admin().GetClusterStatus(Soon())->replicas() == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Set, Clock, ::testing::Values(6, -6), [](const auto& info) {
  return info.param > 0 ? std::string("Forward") : std::string("Back");
});

}  // namespace
}  // namespace tensorcast::testing
