#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::grants_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Grants : public DirectoryTest {
 protected:
  void SetUp() override {
    Register("source");
    Register("receiver");
    Publish("x");
    Update("source", {SomeReplica("r", "x")});
  }
  std::string MustRequest(const std::string& receiver = "receiver") {
    const GrantOffer offer = Request(receiver, "x");
    EXPECT_FALSE(offer.granted.empty()) << offer.no_source_reason;
    return !offer.granted.empty() ? offer.granted.front().grant.grant_id : "";
  }
  absl::Status Complete(const std::string& grant_id, GrantEnd end = GrantEnd::kSucceeded,
                        bool corrupt = false) {
    return directory_.transfers().CompleteGrant(Id("receiver"), grant_id, end, corrupt, now_);
  }
  void Pass(absl::Duration duration) {
    now_ += duration;
    Beat("source");
    directory_.Tick(now_);
  }
};

TEST_F(Grants, GrantedPull_NamesReceiverSourceReplicaAndLane) {
  const GrantOffer offer = Request("receiver", "x");
  ASSERT_FALSE(offer.granted.empty());
  const Grant& grant = offer.granted.front().grant;
  EXPECT_EQ(grant.source_node, "source");
  EXPECT_EQ(grant.receiver_node, "receiver");
  EXPECT_EQ(grant.replica_id, "r");
  EXPECT_EQ(grant.lane, "ucx");
  EXPECT_EQ(offer.granted.front().source.facts.grpc_address, "source:7000");
  EXPECT_EQ(offer.granted.front().source_key, "key1");
  EXPECT_EQ(grant.expires, now_ + options_.transfers.grant_ttl);
}

TEST_F(Grants, OvertakenSource_IsOfferedLastUntilItsRestEnds) {
  Register("another");
  Register("third");
  Update("another", {SomeReplica("q", "x")});
  const std::string silent = Offered("third", "x");
  const GrantOffer offer = Request("receiver", "x", {silent == "r" ? "q" : "r"});
  ASSERT_FALSE(offer.granted.empty());
  EXPECT_TRUE(Complete(offer.granted.front().grant.grant_id, GrantEnd::kOvertaken).ok());
  EXPECT_NE(Offered("third", "x"), silent);
  EXPECT_NE(Offered("third", "x"), "") << "and it is still a source";
  now_ += absl::Seconds(9);
  EXPECT_NE(Offered("third", "x"), silent);
  Beat("source");
  Beat("another");
  Beat("third");
  now_ += absl::Seconds(2);
  EXPECT_EQ(Offered("third", "x"), silent);
}

TEST_F(Grants, GrantForUnknownArtifact_IsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(directory_.transfers()
                                   .RequestGrant({.receiver = Id("receiver"), .artifact_id = "nothing"}, now_)
                                   .status()));
}

TEST_F(Grants, HolderOfReplica_GetsNoGrantFromItself) {
  const GrantOffer offer = Request("source", "x");
  EXPECT_TRUE(offer.granted.empty());
  EXPECT_EQ(offer.no_source_reason, "no other node has a replica");
}

TEST_F(Grants, TriedReplica_IsNotGrantedAgain) {
  const GrantOffer offer = Request("receiver", "x", {"r"});
  EXPECT_TRUE(offer.granted.empty());
  EXPECT_THAT(offer.no_source_reason, HasSubstr("is incomplete, is corrupt, failed before"));
}

TEST_F(Grants, UnreachableSource_IsNotGrantedButNamed) {
  ASSERT_TRUE(directory_.membership().SetUnreachable(Id("source"), true).ok());
  const GrantOffer offer = Request("receiver", "x");
  EXPECT_TRUE(offer.granted.empty());
  EXPECT_THAT(offer.waiting_for, ElementsAre(HasSubstr("node name-source, which has a copy and reports that "
                                                       "its own address does not answer: source:7000")))
      << "what it has is not lost: the receiver must not take it for NOT_FOUND";
  EXPECT_EQ(offer.retry_after, absl::ZeroDuration());
  EXPECT_TRUE(directory_.membership().Find("source")->unreachable);
  ASSERT_TRUE(directory_.membership().SetUnreachable(Id("source"), false).ok());
  MustRequest();
  EXPECT_TRUE(absl::IsNotFound(directory_.membership().SetUnreachable(Id("unknown"), true)));
}

TEST_F(Grants, UnreachableFillingSource_IsNotWaitedFor) {
  ASSERT_TRUE(directory_.membership().SetUnreachable(Id("source"), true).ok());
  Update("source", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  const GrantOffer offer = Request("receiver", "x");
  EXPECT_EQ(offer.retry_after, absl::ZeroDuration());
  EXPECT_THAT(offer.waiting_for, ElementsAre(HasSubstr("does not answer: source:7000")));
  EXPECT_THAT(Request("receiver", "x", {"r"}).waiting_for, IsEmpty()) << "it was tried, and is not a copy";
}

TEST_F(Grants, SourceWithoutSharedLane_IsNotGranted) {
  NodeFacts other = SomeNode("other");
  other.lanes = {"carrier pigeon"};
  Register(other);
  const GrantOffer offer = Request("other", "x");
  EXPECT_TRUE(offer.granted.empty());
  EXPECT_THAT(offer.no_source_reason, HasSubstr("no lane connects this node"));
}

TEST_F(Grants, Grants_AreSpreadOverSources) {
  Register("second");
  Update("second", {SomeReplica("r2", "x")});
  const GrantOffer first = Request("receiver", "x");
  const GrantOffer second = Request("receiver", "x");
  ASSERT_TRUE(!first.granted.empty() && !second.granted.empty());
  EXPECT_NE(first.granted.front().grant.replica_id, second.granted.front().grant.replica_id);
}

TEST_F(Grants, GrantsOfOneTransfer_HaveDifferentSources) {
  for (const char* node : {"second", "third"}) {
    Register(node);
    Update(node, {SomeReplica(absl::StrCat("r-", node), "x")});
  }
  GrantRequest request{.receiver = Id("receiver"), .artifact_id = "x", .destination = {}, .sources = 6};
  const auto first = directory_.transfers().RequestGrant(request, now_);
  ASSERT_TRUE(first.ok());
  ASSERT_THAT(first->granted, SizeIs(2));
  std::set<std::string> sources;
  for (const OfferedGrant& granted : first->granted) {
    request.held_grants.push_back(granted.grant.grant_id);
    sources.insert(granted.grant.source_node);
  }
  const auto second = directory_.transfers().RequestGrant(request, now_);
  ASSERT_THAT(second->granted, SizeIs(1));
  sources.insert(second->granted.front().grant.source_node);
  EXPECT_THAT(sources, SizeIs(3));
  request.held_grants.push_back(second->granted.front().grant.grant_id);
  EXPECT_THAT(directory_.transfers().RequestGrant(request, now_)->granted, IsEmpty());
}

TEST_F(Grants, CompleteGrant_EndsOnceAndAcceptsRepeats) {
  const std::string id = MustRequest();
  EXPECT_TRUE(Complete(id).ok());
  EXPECT_TRUE(Complete(id, GrantEnd::kFailed).ok());
  EXPECT_TRUE(Complete("unknown").ok());
  const auto ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kSucceeded);
  EXPECT_THAT(Beat("source").revoked_grants, ElementsAre(id)) << "its pull may have been opened late";
  EXPECT_THAT(Beat("receiver").revoked_grants, IsEmpty());
}

TEST_F(Grants, CompleteGrant_AcceptsUnregisteredNode) {
  EXPECT_TRUE(directory_.transfers()
                  .CompleteGrant(Id("from before the restart"), "t", GrantEnd::kSucceeded, false, now_)
                  .ok());
}

TEST_F(Grants, CompleteGrant_RefusesOtherThanReceiver) {
  const std::string id = MustRequest();
  EXPECT_TRUE(absl::IsPermissionDenied(directory_.transfers().CompleteGrant(
      Id("source"), id, GrantEnd::kSucceeded, /*source_corrupt=*/true, now_)));
  EXPECT_NE(directory_.transfers().grants().Find(id), nullptr);
}

TEST_F(Grants, Grant_LivesWhileReceiverNamesIt) {
  const std::string id = MustRequest();
  for (int i = 0; i < 10; ++i) {
    Pass(options_.membership.node_ttl);
    Beat("receiver", {id});
  }
  EXPECT_NE(directory_.transfers().grants().Find(id), nullptr);
  EXPECT_THAT(directory_.transfers().grants().TakeEnded(), IsEmpty());
}

TEST_F(Grants, UnnamedGrant_ExpiresAndBothNodesAreTold) {
  const std::string id = MustRequest();
  while (directory_.transfers().grants().Find(id) != nullptr) {
    ASSERT_LT(now_, SteadyTime() + absl::Seconds(1'700'000'000) + 2 * options_.transfers.grant_ttl);
    Beat("receiver");
    Pass(absl::Seconds(5));
  }
  const auto ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kExpired);
  EXPECT_THAT(Beat("source").revoked_grants, ElementsAre(id));
  EXPECT_THAT(Beat("source").revoked_grants, ElementsAre(id)) << "the answer before may have been lost";
  EXPECT_THAT(Beat("receiver").revoked_grants, ElementsAre(id));
}

TEST_F(Grants, Revocation_IsRepeatedForLimitedTime) {
  MustRequest();
  Delete("x");
  ASSERT_THAT(Beat("source").revoked_grants, SizeIs(1));
  Pass(options_.membership.node_ttl);
  EXPECT_THAT(Beat("source").revoked_grants, SizeIs(1));
  Pass(absl::Seconds(1));
  EXPECT_THAT(Beat("source").revoked_grants, IsEmpty());
}

TEST_F(Grants, HeartbeatOfOtherNode_DoesNotRenewGrant) {
  const std::string id = MustRequest();
  const SteadyTime expires = directory_.transfers().grants().Find(id)->expires;
  now_ += absl::Seconds(3);
  Beat("source", {id});
  EXPECT_EQ(directory_.transfers().grants().Find(id)->expires, expires);
  Beat("receiver", {id});
  EXPECT_EQ(directory_.transfers().grants().Find(id)->expires, expires + absl::Seconds(3));
}

TEST_F(Grants, GrantOfDeadReceiver_ExpiresAndSourceIsTold) {
  const std::string id = MustRequest();
  Pass(options_.membership.node_ttl + absl::Seconds(1));
  EXPECT_EQ(directory_.counts().nodes, 1u);
  EXPECT_THAT(Beat("source").revoked_grants, ElementsAre(id));
  EXPECT_THAT(directory_.transfers().grants().TakeEnded(), SizeIs(1));
}

TEST_F(Grants, GrantOfDeadSource_ExpiresAndReceiverIsTold) {
  const std::string id = MustRequest();
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  Beat("receiver", {id});
  directory_.Tick(now_);
  EXPECT_THAT(Beat("receiver").revoked_grants, ElementsAre(id));
  EXPECT_THAT(directory_.transfers().grants().TakeEnded(), SizeIs(1));
}

TEST_F(Grants, DeletedArtifact_RevokesItsGrants) {
  const std::string id = MustRequest();
  Delete("x");
  const auto ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kRevoked);
  EXPECT_THAT(Beat("source").revoked_grants, ElementsAre(id));
}

TEST_F(Grants, CorruptReplica_IsNoLongerOffered) {
  const std::string id = MustRequest();
  ASSERT_TRUE(Complete(id, GrantEnd::kFailed, /*corrupt=*/true).ok());
  EXPECT_EQ(Offered("receiver", "x"), "");
  Update("source", {SomeReplica("r", "x")});
  EXPECT_EQ(Offered("receiver", "x"), "") << "the same replica, reported again";
  Update("source",
         {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone), SomeReplica("r-anew", "x")});
  EXPECT_EQ(Offered("receiver", "x"), "r-anew");
}

TEST_F(Grants, RepeatedRequest_GetsSameGrantWhileItLives) {
  const std::string id = MustRequest();
  auto repeated = directory_.transfers().RepeatOffer(id, now_);
  ASSERT_TRUE(repeated.has_value() && !repeated->granted.empty());
  EXPECT_EQ(repeated->granted.front().grant.grant_id, id);
  EXPECT_EQ(repeated->granted.front().source_key, "key1");
  EXPECT_LT(repeated->look_again, absl::Seconds(1)) << "for what the first answer had besides";
  ASSERT_TRUE(Complete(id).ok());
  EXPECT_FALSE(directory_.transfers().RepeatOffer(id, now_).has_value());
}

TEST_F(Grants, TokenLifetime_FollowsReceiverTimeoutWithinLimits) {
  const auto token_age = [&](absl::Duration timeout) {
    auto offer = directory_.transfers().RequestGrant(
        {.receiver = Id("receiver"), .artifact_id = "x", .destination = {}, .timeout = timeout}, now_);
    return offer->granted.front().grant.token_expires;
  };
  EXPECT_EQ(token_age(absl::ZeroDuration()), options_.transfers.grant_ttl);
  EXPECT_EQ(token_age(absl::Minutes(5)), absl::Minutes(5));
  EXPECT_EQ(token_age(absl::InfiniteDuration()), absl::Hours(1));
}

}  // namespace
}  // namespace tensorcast::global_store::grants_test
