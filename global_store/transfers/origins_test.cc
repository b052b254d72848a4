#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::origins_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Node a has the only replica of x, which was imported on node b.
class Origins : public DirectoryTest {
 protected:
  void SetUp() override {
    Register("a");
    Register("b");
    Import(origin_);
    Update("a", {SomeReplica("r", "x")});
  }

  // As an import, and where that is so, a comparison that ended, tell of it.
  void Import(const Origin& origin, const std::string& artifact_id = "x") {
    Origin imported = origin;
    imported.compared = false;
    ASSERT_TRUE(Publish(imported, artifact_id).ok());
    if (origin.compared) {
      ASSERT_TRUE(Publish(origin, artifact_id).ok());
    }
  }
  absl::Status Publish(const Origin& origin, const std::string& artifact_id = "x") {
    const auto plan = directory_.PreparePublish(
        {.node = Id(origin.node_id), .artifact = {.artifact_id = artifact_id}, .origin = origin}, wall_now());
    if (!plan.ok()) return plan.status();
    directory_.Apply(plan->facts, now_);
    directory_.catalog().RenewOrigin(artifact_id, origin.node_id);
    return absl::OkStatus();
  }
  Origin OnRecord() { return DescribeArtifact(directory_, "x")->record.origins[0]; }
  void Note(OriginFinding finding, std::string_view reason = "") {
    directory_.NoteOrigin("x", origin_, finding, reason, now_);
  }
  void Pass(absl::Duration time) {
    now_ += time;
    Beat("a");
    Beat("b");
  }

  const Origin origin_{.node_id = "b", .objects = {{"/m", 1, "1"}}, .compared = true};
};

TEST_F(Origins, UncomparedOrigin_DoesNotCountAsCopy) {
  const Origin other{.node_id = "b", .objects = {{"/m", 1, "2"}}};
  Import(other);
  EXPECT_FALSE(OnRecord().compared) << "other files than those that were compared";
  directory_.NoteOrigin("x", other, OriginFinding::kIntact, "the disk failed", now_);
  const EvictionDecision never_begun = Evict("a", "r");
  EXPECT_FALSE(never_begun.granted);
  EXPECT_EQ(never_begun.waiting_for, "");
  EXPECT_THAT(never_begun.reason,
              HasSubstr("name-b has not compared the artifact with its imported files (the disk failed)"));

  directory_.NoteOrigin("x", other, OriginFinding::kComparing, "3.1 of 16.0 GiB", now_);
  const EvictionDecision under_way = Evict("a", "r");
  EXPECT_FALSE(under_way.granted);
  EXPECT_EQ(under_way.waiting_for,
            "the comparison of x with the imported files at /m (3.1 of 16.0 GiB), after which the replica "
            "can be evicted");
  EXPECT_THAT(under_way.reason, HasSubstr(under_way.waiting_for));

  Origin compared = other;
  compared.compared = true;
  ASSERT_TRUE(Publish(compared).ok());
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));
  directory_.NoteOrigin("x", other, OriginFinding::kIntact, "", now_);
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(Origins, UntraceableOrigin_NeverCountsAsCopy) {
  const Origin in_memory{.node_id = "b", .objects = {{"/m", 1, "1"}}, .untraceable = true, .compared = true};
  Import(in_memory);
  directory_.NoteOrigin("x", in_memory, OriginFinding::kIntact, "", now_);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("does not show every change of a file"));
}

TEST_F(Origins, ReimportedUnchangedOrigin_StaysCompared) {
  Import({.node_id = "b", .objects = origin_.objects});
  EXPECT_TRUE(OnRecord().compared);
  for (const ObjectIdentity& changed : {ObjectIdentity{"/n", 1, "1"}, {"/m", 2, "1"}, {"/m", 1, "9"}}) {
    Import(origin_);
    Import({.node_id = "b", .objects = {changed}});
    EXPECT_FALSE(OnRecord().compared);
  }
}

TEST_F(Origins, ComparisonOfDeletedArtifact_IsRefused) {
  const Origin other{.node_id = "b", .objects = {{"/other", 1, "1"}}, .compared = true};
  EXPECT_EQ(Publish(other).code(), absl::StatusCode::kFailedPrecondition);
  const auto deleted = directory_.catalog().PrepareDeleteArtifact("x", wall_now());
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  directory_.Apply(*deleted, now_);
  EXPECT_EQ(Publish(origin_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(DescribeArtifact(directory_, "x").ok());
}

TEST_F(Origins, Origin_CountsAsCopyOnlyAfterItsCheck) {
  const EvictionDecision unchecked = Evict("a", "r");
  EXPECT_FALSE(unchecked.granted);
  ASSERT_THAT(unchecked.unchecked_origins, SizeIs(1));
  EXPECT_EQ(unchecked.unchecked_origins[0].artifact_id, "x");
  EXPECT_EQ(unchecked.unchecked_origins[0].origin, origin_);
  EXPECT_EQ(unchecked.unchecked_origins[0].grpc_address, "b:7000");
  Note(OriginFinding::kIntact);
  EXPECT_TRUE(Evict("a", "r").granted);
}

// b reads its files for a, which has a replica that fills from nothing until they are read.
TEST_F(Origins, NodeThatReadsForAnother_IsNotSentToThatNode) {
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_TRUE(Request("a", "x").origin_to_read.has_value());
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  for (int i = 0; i < 10; ++i) {
    const GrantOffer of_reader = Request("b", "x");
    EXPECT_THAT(of_reader.granted, IsEmpty());
    EXPECT_THAT(of_reader.waiting_for, IsEmpty());
    const GrantOffer waits = Request("a", "x");
    EXPECT_THAT(waits.waiting_for, ElementsAre(HasSubstr("name-b")));
    now_ += waits.retry_after;
  }
  // A third node finds the one that reads, by the one that waits for it.
  Register("c");
  EXPECT_GT(Request("c", "x").retry_after, absl::ZeroDuration());
}

TEST_F(Origins, OldOriginFinding_IsCheckedAgain) {
  Note(OriginFinding::kIntact);
  Pass(options_.origin_finding_age + absl::Nanoseconds(1));
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, SizeIs(1));
}

TEST_F(Origins, ChangedOrigin_NeverCountsAsCopyAgain) {
  Note(OriginFinding::kGone, "its files changed");
  for (int i = 0; i < 2; ++i) {
    const EvictionDecision decision = Evict("a", "r");
    EXPECT_FALSE(decision.granted);
    EXPECT_THAT(decision.unchecked_origins, IsEmpty());
    EXPECT_THAT(decision.reason,
                AllOf(HasSubstr("last copy"), HasSubstr("imported files of node name-b are gone"),
                      HasSubstr("its files changed")));
    Pass(absl::Minutes(1));
    Note(OriginFinding::kIntact);  // the same file back in its place does not undo what was promised
  }
}

TEST_F(Origins, RepublishedOrigin_IsCheckedAgain) {
  Note(OriginFinding::kGone, "no such file");
  Import(origin_);
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));

  Note(OriginFinding::kGone, "no such file");
  const Origin elsewhere{.node_id = "b", .objects = {{"/elsewhere", 1, "1"}}, .compared = true};
  Import(elsewhere);
  Note(OriginFinding::kIntact);  // of the one before: it says nothing of this one
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  ASSERT_THAT(decision.unchecked_origins, SizeIs(1));
  EXPECT_EQ(decision.unchecked_origins[0].origin, elsewhere);
}

TEST_F(Origins, OriginFinding_SurvivesPublicationOfOtherOrigin) {
  Note(OriginFinding::kGone, "no such file");
  Import({.node_id = "a", .objects = {{"/m", 1, "1"}}});
  const EvictionDecision decision = Evict("a", "r");
  ASSERT_THAT(decision.unchecked_origins, SizeIs(1));
  EXPECT_EQ(decision.unchecked_origins[0].origin.node_id, "a");
}

TEST_F(Origins, OriginOnSilentNode_DoesNotCountAndIsRetriedLater) {
  Note(OriginFinding::kSilent);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("name-b, which imported the artifact, does not answer"));
  Pass(options_.origin_finding_age + absl::Nanoseconds(1));
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));
}

TEST_F(Origins, UnclearOriginCheck_IsRepeatedLaterForThatOriginOnly) {
  Note(OriginFinding::kUnclear, "too many checks at once");
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("name-b could not check its imported files (too many checks"));

  Import(origin_, "y");
  Update("a", {SomeReplica("ry", "y")});
  EXPECT_THAT(Evict("a", "ry").unchecked_origins, SizeIs(1));

  Pass(options_.origin_finding_age + absl::Nanoseconds(1));
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));
  Note(OriginFinding::kIntact);
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(Origins, OriginOnNodeThatIsAway_DoesNotCount) {
  Note(OriginFinding::kIntact);
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  Beat("a");
  directory_.Tick(now_);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("node b, which imported the artifact, is away"));
}

TEST_F(Origins, Origin_IsNotCheckedWhenOtherReplicaExists) {
  Update("b", {SomeReplica("other", "x")});
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(Origins, IntactOrigin_GrantsEvictionBesideChangedOne) {
  const Origin intact{.node_id = "a", .objects = {{"/n", 1, "1"}}, .compared = true};
  Import(intact);
  Note(OriginFinding::kGone, "no such file");
  directory_.NoteOrigin("x", intact, OriginFinding::kIntact, "", now_);
  EXPECT_TRUE(Evict("a", "r").granted);
}

// No node has a replica of x; it was imported on node b.
class ReadOrigins : public Origins {
 protected:
  void SetUp() override {
    Origins::SetUp();
    Register("c");
    Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  }
  static bool MustWait(const GrantOffer& offer) {
    return offer.granted.empty() && offer.retry_after > absl::ZeroDuration();
  }
  void NoteReading(const absl::Status& read) {
    directory_.transfers().NoteReading({.artifact_id = "x", .origin = origin_, .grpc_address = ""}, read,
                                       now_);
  }
};

TEST_F(ReadOrigins, SeveralReceivers_OriginIsReadOnceForAll) {
  const GrantOffer first = Request("a", "x");
  EXPECT_TRUE(MustWait(first));
  EXPECT_THAT(first.waiting_for,
              ElementsAre(HasSubstr("node name-b, which reads the files that it imported")));
  ASSERT_TRUE(first.origin_to_read.has_value());
  EXPECT_EQ(first.origin_to_read->origin, origin_);
  EXPECT_EQ(first.origin_to_read->grpc_address, "b:7000");
  for (const char* receiver : {"a", "c"}) {
    const GrantOffer again = Request(receiver, "x");
    EXPECT_TRUE(MustWait(again));
    EXPECT_FALSE(again.origin_to_read.has_value());
  }
  NoteReading(absl::OkStatus());
  EXPECT_TRUE(MustWait(Request("a", "x"))) << "its report is on its way";
  Update("b", {SomeReplica("rb", "x")});
  EXPECT_EQ(Offered("a", "x"), "rb");
}

TEST_F(ReadOrigins, UnreadableOrigin_IsNamedAndReadAgainAfterPause) {
  ASSERT_TRUE(Request("a", "x").origin_to_read.has_value());
  NoteReading(absl::ResourceExhaustedError("no room"));
  const GrantOffer failed = Request("a", "x");
  EXPECT_FALSE(MustWait(failed));
  EXPECT_THAT(failed.waiting_for, ElementsAre(AllOf(HasSubstr("name-b"), HasSubstr("no room"))));
  Pass(absl::Seconds(6));
  EXPECT_TRUE(Request("a", "x").origin_to_read.has_value());
}

TEST_F(ReadOrigins, ChangedOrigin_IsNotWaitedForAndReasonIsTold) {
  Note(OriginFinding::kGone, "its files changed");
  const GrantOffer offer = Request("a", "x");
  EXPECT_FALSE(MustWait(offer));
  EXPECT_THAT(offer.waiting_for, IsEmpty());
  EXPECT_THAT(offer.no_source_reason, HasSubstr("its files changed"));
}

TEST_F(ReadOrigins, OriginOfReceiver_IsLeftToTheReceiver) {
  const GrantOffer alone = Request("b", "x");
  EXPECT_FALSE(MustWait(alone));
  EXPECT_FALSE(alone.origin_to_check.has_value());

  Import({.node_id = "a", .objects = {{"/m", 1, "1"}}});
  Pass(absl::Minutes(1));
  const GrantOffer unchecked = Request("b", "x");
  ASSERT_TRUE(unchecked.origin_to_check.has_value());
  EXPECT_EQ(unchecked.origin_to_check->origin, origin_);
  Note(OriginFinding::kIntact);
  const GrantOffer intact = Request("b", "x");
  EXPECT_FALSE(intact.origin_to_check.has_value() || intact.origin_to_read.has_value());
  Note(OriginFinding::kGone, "no such file");
  const GrantOffer gone = Request("b", "x");
  ASSERT_TRUE(gone.origin_to_read.has_value());
  EXPECT_EQ(gone.origin_to_read->origin.node_id, "a");
}

TEST_F(ReadOrigins, Origin_IsNotReadWhenItsNodeHasCorruptReplica) {
  Update("b", {SomeReplica("rb", "x")});
  const GrantOffer offer = Request("a", "x", {"rb"}, {"rb"});
  EXPECT_FALSE(MustWait(offer));
  EXPECT_FALSE(offer.origin_to_read.has_value());
}

TEST_F(ReadOrigins, Origin_IsReadOnlyAfterEvictedReplicaIsGone) {
  Update("b", {SomeReplica("rb", "x")});
  Note(OriginFinding::kIntact);
  ASSERT_TRUE(Evict("b", "rb").granted);
  const GrantOffer offer = Request("a", "x");
  EXPECT_TRUE(MustWait(offer));
  EXPECT_FALSE(offer.origin_to_read.has_value());
  Update("b", {SomeReplica("rb", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_TRUE(Request("a", "x").origin_to_read.has_value());
}

TEST_F(ReadOrigins, OriginOnUnreachableNode_IsNamedButNotRead) {
  ASSERT_TRUE(directory_.membership().SetUnreachable(Id("b"), true).ok());
  const GrantOffer offer = Request("a", "x");
  EXPECT_FALSE(MustWait(offer));
  EXPECT_FALSE(offer.origin_to_read.has_value());
  EXPECT_THAT(offer.waiting_for, ElementsAre(HasSubstr("does not answer: b:7000")));
  Update("a", {SomeReplica("r2", "x")});
  const EvictionDecision decision = Evict("a", "r2");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("name-b, which imported the artifact, does not answer"));
}

TEST_F(ReadOrigins, RequiredLane_ReadsOriginOfOtherNode) {
  Import({.node_id = "a", .objects = {{"/m", 1, "1"}}});
  const auto request = [&](const std::string& lane) {
    return directory_.transfers().RequestGrant({.receiver = Id("a"),
                                                .artifact_id = "x",
                                                .destination = {.kind = LocationKind::kCpu},
                                                .required_lane = lane},
                                               now_);
  };
  const auto over_ucx = request("ucx");
  ASSERT_TRUE(over_ucx.ok()) << over_ucx.status();
  EXPECT_TRUE(MustWait(*over_ucx));
  ASSERT_TRUE(over_ucx->origin_to_read.has_value());
  EXPECT_EQ(over_ucx->origin_to_read->origin.node_id, "b");
  const auto from_disk = request("disk");
  ASSERT_TRUE(from_disk.ok()) << from_disk.status();
  EXPECT_FALSE(MustWait(*from_disk));
  EXPECT_FALSE(from_disk->origin_to_read.has_value());
}

TEST_F(ReadOrigins, Origin_IsNotReadWhileReplicaFills) {
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  const GrantOffer offer = Request("c", "x");
  EXPECT_TRUE(MustWait(offer));
  EXPECT_FALSE(offer.origin_to_read.has_value());
}

}  // namespace
}  // namespace tensorcast::global_store::origins_test
