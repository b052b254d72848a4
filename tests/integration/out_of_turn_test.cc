// Calls that are well-formed and come at the wrong time: stale revisions, ends before beginnings, the same
// thing twice, the voice of a process that was replaced. Each gets the answer that lets its caller go on, and
// changes nothing it should not.
#include <algorithm>

#include "base/status.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/grant_token/grant_token.h"
#include "rpc/protocol_version.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OutOfTurn : public ::testing::Test {
 protected:
  explicit OutOfTurn(absl::Duration grant_ttl = absl::Seconds(10)) : cluster_(grant_ttl) {}

  void SetUp() override {
    a_ = &cluster_.AddNode("a", OnItsOwnHost);
    artifact_ = MakeChunkedArtifact(1, 3, kTestChunkBytes);
    auto put = a_->client().Import(Soon(), cluster_.WriteModel("model", artifact_), {.key = "k"});
    ASSERT_TRUE(put.ok()) << put.status();
    put_ = *put;
    global_store_ = daemon::MakeGlobalStoreClient(
        std::make_shared<daemon::GlobalStoreChannel>(cluster_.global_store().address()));
    peer_ = daemon::MakePeerClient(
        [](const daemon::PeerAddress& peer) { return rpc::MakeChannel(peer.address); });
  }

  // A node that is nothing but its calls.
  absl::Status Register(const std::string& name, uint64_t incarnation) {
    v1::RegisterNodeRequest request;
    request.mutable_node()->set_node_id(name);
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_grpc_address("127.0.0.1:1");
    request.mutable_node()->set_incarnation(incarnation);
    request.mutable_node()->set_host_id(name);
    request.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    request.mutable_node()->add_lanes("loopback");
    return global_store_->RegisterNode(Soon(), request).status();
  }
  static v1::NodeIdentity Identity(const std::string& name, uint64_t incarnation) {
    v1::NodeIdentity identity;
    identity.set_node_id(name);
    identity.set_incarnation(incarnation);
    return identity;
  }
  absl::Status Beat(const std::string& name, uint64_t incarnation) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Identity(name, incarnation);
    return global_store_->Heartbeat(Soon(), request).status();
  }
  absl::StatusOr<v1::UpdateReplicasResponse> Update(const std::string& name, uint64_t incarnation,
                                                    uint64_t sequence,
                                                    const std::vector<std::string>& replicas) {
    v1::UpdateReplicasRequest request;
    *request.mutable_node() = Identity(name, incarnation);
    request.set_sequence(sequence);
    for (const std::string& id : replicas) {
      v1::Replica* replica = request.add_replicas();
      replica->set_replica_id(id);
      replica->set_artifact_id(put_.artifact_id);
      replica->set_node_id(name);
      replica->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
      replica->set_state(v1::REPLICA_STATE_READY);
    }
    return global_store_->UpdateReplicas(Soon(), request);
  }
  absl::StatusOr<v1::TransportGrant> RequestTransport(const std::string& name, uint64_t incarnation) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = Identity(name, incarnation);
    request.set_artifact_id(put_.artifact_id);
    request.mutable_destination()->set_kind(v1::LOCATION_KIND_CPU);
    TC_ASSIGN_OR_RETURN(const v1::RequestReplicaTransportResponse response,
                        global_store_->RequestReplicaTransport(Soon(), request));
    if (response.grants().empty()) return absl::NotFoundError(response.no_source_reason());
    return response.grants(0);
  }
  absl::Status Complete(const std::string& name, uint64_t incarnation, const std::string& grant_id) {
    v1::CompleteReplicaTransportRequest request;
    *request.mutable_node() = Identity(name, incarnation);
    request.set_grant_id(grant_id);
    request.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
    return global_store_->CompleteReplicaTransport(Soon(), request);
  }
  absl::Status OpenPull(const v1::TransportGrant& grant, const std::string& token,
                        const std::string& receiver) {
    v1::OpenPullRequest request;
    request.set_grant_id(grant.grant_id());
    request.set_replica_id(grant.replica().replica_id());
    request.set_artifact_id(put_.artifact_id);
    request.set_receiver_node_id(receiver);
    request.set_lane("loopback");
    request.set_grant_token(token);
    return peer_->OpenPull(Soon(), a_->server().addresses().front(), request).status();
  }
  // The same by the local lane.
  absl::Status Attach(const v1::TransportGrant& grant, const std::string& token) {
    v1::AttachReplicaRequest request;
    request.set_grant_id(grant.grant_id());
    request.set_replica_id(grant.replica().replica_id());
    request.set_grant_token(token);
    return peer_->AttachReplica(Soon(), a_->server().addresses().front(), request).status();
  }
  absl::Status ClosePull(const std::string& grant_id) {
    v1::ClosePullRequest request;
    request.set_grant_id(grant_id);
    return peer_->ClosePull(Soon(), a_->server().addresses().front(), request).status();
  }
  uint64_t Replicas() { return a_->admin().GetClusterStatus(Soon())->replicas(); }
  // A call that was refused before holds nothing at the source, and others are served.
  void ExpectNothingHeldAndServed() {
    const auto status = a_->admin().GetStatus(Soon());
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->active_servings(), 0);
    EXPECT_EQ(status->tickets(), 0);
    EXPECT_EQ(status->leases(), 0);
    TestNode& receiver = cluster_.AddNode("receiver", OnItsOwnHost);
    const auto replica = receiver.client().Get(Soon(), "k", {});
    ASSERT_TRUE(replica.ok()) << replica.status();
    EXPECT_TRUE(std::ranges::equal((*replica)->image(), artifact_.image));
  }
  uint64_t Grants() { return a_->admin().GetClusterStatus(Soon())->active_grants(); }

  TestCluster cluster_;
  TestNode* a_ = nullptr;
  TestArtifact artifact_;
  client::PutResult put_;
  std::unique_ptr<daemon::GlobalStoreClient> global_store_;
  std::unique_ptr<daemon::PeerClient> peer_;
};

TEST_F(OutOfTurn, StaleRevision_DoesNotChangeKey) {
  ASSERT_TRUE(a_->client().BindKey(Soon(), "k", put_.artifact_id, 1).ok());
  for (const uint64_t stale : {uint64_t{0}, uint64_t{1}, uint64_t{3}, UINT64_MAX}) {
    EXPECT_EQ(a_->client().BindKey(Soon(), "k", put_.artifact_id, stale).status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(a_->client().DeleteKey(Soon(), "k", stale).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(
        a_->client()
            .Import(Soon(), cluster_.WriteModel("model", artifact_), {.key = "k", .expected_revision = stale})
            .status()
            .code(),
        absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(a_->client().ResolveKey(Soon(), "k")->revision, 2u);
}

TEST_F(OutOfTurn, CompleteTransportBeforeRequestOrTwice_Succeeds) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  EXPECT_EQ(Complete("b", 1, "never-requested"), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(Grants(), 1u);
  EXPECT_EQ(Complete("b", 1, grant->grant_id()), absl::OkStatus());
  EXPECT_EQ(Complete("b", 1, grant->grant_id()), absl::OkStatus());
  EXPECT_EQ(Grants(), 0u);
}

TEST_F(OutOfTurn, CompleteTransport_IsDeniedToOtherThanReceiver) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  ASSERT_EQ(Register("c", 1), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(Complete("c", 1, grant->grant_id()).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Grants(), 1u);
}

TEST_F(OutOfTurn, CallsOfReplacedIncarnation_AreAborted) {
  ASSERT_EQ(Register("b", 7), absl::OkStatus());
  EXPECT_EQ(Register("b", 6).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Beat("b", 6).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Update("b", 6, 1, {"r"}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(RequestTransport("b", 6).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Complete("b", 6, "t").code(), absl::StatusCode::kAborted);
  // One that has not said hello is asked to.
  EXPECT_EQ(Beat("b", 8).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Beat("absent", 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Beat("b", 7), absl::OkStatus());
  EXPECT_EQ(Replicas(), 1u);
}

TEST_F(OutOfTurn, RepeatedOrEarlyUpdate_IsNotAppliedAndGapRequestsInventory) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  ASSERT_TRUE(Update("b", 1, 1, {"r1"}).ok());
  ASSERT_EQ(Replicas(), 2u);
  EXPECT_TRUE(Update("b", 1, 1, {"r-again"}).ok());
  EXPECT_EQ(Replicas(), 2u) << "an update with an old number was applied";
  const auto gap = Update("b", 1, 5, {"r5"});
  ASSERT_TRUE(gap.ok()) << gap.status();
  EXPECT_TRUE(gap->inventory_wanted()) << "three updates were missed and are not asked for";
}

TEST_F(OutOfTurn, UnknownReplica_IsNotEvictedServedOrAttachedTo) {
  v1::RequestEvictionRequest eviction;
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  *eviction.mutable_node() = Identity("b", 1);
  eviction.set_replica_id("unknown");
  EXPECT_TRUE(absl::IsNotFound(global_store_->RequestEviction(Soon(), eviction).status()));
  EXPECT_EQ(a_->admin().EvictReplica(Soon(), "unknown", true).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(a_->client().SetPinned(Soon(), "unknown", true).code(), absl::StatusCode::kNotFound);
  v1::AttachReplicaRequest attach;
  attach.set_replica_id("unknown");
  EXPECT_EQ(peer_->AttachReplica(Soon(), a_->server().addresses().front(), attach).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(OutOfTurn, ClosePullBeforeOpenOrTwice_SucceedsAndPullStaysClosed) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  EXPECT_EQ(ClosePull("never-opened"), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  ASSERT_EQ(OpenPull(*grant, grant->token(), "b"), absl::OkStatus());
  EXPECT_EQ(OpenPull(*grant, grant->token(), "b"), absl::OkStatus()) << "a repetition is the same pull";
  EXPECT_EQ(a_->admin().GetStatus(Soon())->active_servings(), 1);
  EXPECT_EQ(ClosePull(grant->grant_id()), absl::OkStatus());
  EXPECT_EQ(ClosePull(grant->grant_id()), absl::OkStatus());
  EXPECT_EQ(OpenPull(*grant, grant->token(), "b").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(a_->admin().GetStatus(Soon())->active_servings(), 0);
  EXPECT_EQ(a_->admin().GetStatus(Soon())->leases(), 0);
}

TEST_F(OutOfTurn, AlteredGrantOrOtherReceiver_CannotOpenPull) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(OpenPull(*grant, grant->token(), "c").code(), absl::StatusCode::kPermissionDenied);
  for (size_t at = 0; at < grant->token().size(); ++at) {
    std::string forged = grant->token();
    forged[at] = static_cast<char>(forged[at] ^ 1);
    EXPECT_FALSE(OpenPull(*grant, forged, "b").ok()) << "with byte " << at << " changed";
  }
  v1::TransportGrant other = *grant;
  other.set_grant_id("another");
  EXPECT_EQ(OpenPull(other, grant->token(), "b").code(), absl::StatusCode::kPermissionDenied);
  ExpectNothingHeldAndServed();
  EXPECT_EQ(OpenPull(*grant, grant->token(), "b"), absl::OkStatus());
}

TEST_F(OutOfTurn, ForgedGrant_IsRefusedOnEachLaneAndHoldsNothing) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  const std::string forged =
      rpc::SignGrant("a key of one's own", {.grant_id = grant->grant_id(),
                                            .replica_id = grant->replica().replica_id(),
                                            .artifact_id = put_.artifact_id,
                                            .receiver_node_id = "b",
                                            .lane = grant->lane(),
                                            .expires = absl::Hours(1)});
  for (const absl::Status& refused : {OpenPull(*grant, forged, "b"), Attach(*grant, forged)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("not signed for this source"));
  }
  ExpectNothingHeldAndServed();
}

class LateGrant : public OutOfTurn {
 protected:
  LateGrant() : OutOfTurn(absl::Seconds(1)) {}
};

TEST_F(LateGrant, ExpiredGrant_IsRefusedOnEachLaneAndHoldsNothing) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  // Asked for by another node it is not opened while it is good either.
  absl::Status refused;
  EXPECT_TRUE(Eventually([&] {
    refused = OpenPull(*grant, grant->token(), "c");
    return refused.code() != absl::StatusCode::kPermissionDenied;
  }));
  for (const absl::Status& late :
       {refused, OpenPull(*grant, grant->token(), "b"), Attach(*grant, grant->token())}) {
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
    EXPECT_THAT(std::string(late.message()),
                AllOf(HasSubstr("the grant expired"), HasSubstr("request a new grant")));
  }
  EXPECT_TRUE(Eventually([&] { return Grants() == 0; }));
  ExpectNothingHeldAndServed();
}

TEST_F(OutOfTurn, GrantFromBeforeSourceRestart_IsRefused) {
  ASSERT_EQ(Register("b", 1), absl::OkStatus());
  const auto grant = RequestTransport("b", 1);
  ASSERT_TRUE(grant.ok()) << grant.status();
  a_->Stop();
  cluster_.StartNode(*a_, OnItsOwnHost);
  const absl::Status refused = OpenPull(*grant, grant->token(), "b");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was not signed for this source"));
}

}  // namespace
}  // namespace tensorcast::testing
