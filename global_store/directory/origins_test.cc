#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store {
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

  void Import(const Origin& origin) {
    const auto plan = directory_.PreparePublish(
        {.node = Id(origin.node_id), .artifact = {.artifact_id = "x"}, .origin = origin}, now_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    directory_.Apply(plan->facts, now_);
    directory_.RenewOrigin("x", origin.node_id);
  }
  void Note(OriginFinding finding, std::string_view reason = "") {
    directory_.NoteOrigin("x", origin_, finding, reason, now_);
  }
  void Pass(absl::Duration time) {
    now_ += time;
    Beat("a");
    Beat("b");
  }

  const Origin origin_{.node_id = "b", .files = {{"/m", 1, 1}}};
};

TEST_F(Origins, CountAsCopiesOnlyOnceTheyWereLookedAt) {
  const EvictionDecision unchecked = Evict("a", "r");
  EXPECT_FALSE(unchecked.granted);
  ASSERT_THAT(unchecked.unchecked_origins, SizeIs(1));
  EXPECT_EQ(unchecked.unchecked_origins[0].artifact_id, "x");
  EXPECT_EQ(unchecked.unchecked_origins[0].origin, origin_);
  EXPECT_EQ(unchecked.unchecked_origins[0].grpc_address, "b:7000");
  Note(OriginFinding::kIntact);
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(Origins, ThatWereIntactLongerAgoAreLookedAtAgain) {
  Note(OriginFinding::kIntact);
  Pass(options_.origin_finding_age + absl::Nanoseconds(1));
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, SizeIs(1));
}

TEST_F(Origins, ThatAreGoneAreNoCopiesFromThenOn) {
  Note(OriginFinding::kGone, "its files changed");
  for (int i = 0; i < 2; ++i) {
    const EvictionDecision decision = Evict("a", "r");
    EXPECT_FALSE(decision.granted);
    EXPECT_THAT(decision.unchecked_origins, IsEmpty());
    EXPECT_THAT(decision.reason,
                AllOf(HasSubstr("last copy of x"), HasSubstr("name-b imported it from is gone"),
                      HasSubstr("its files changed")));
    Pass(absl::Minutes(1));
    Note(OriginFinding::kIntact);  // the same file back in its place does not undo what was promised
  }
}

TEST_F(Origins, ThatArePublishedAgainAreLookedAtAgain) {
  Note(OriginFinding::kGone, "no such file");
  Import(origin_);
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));

  Note(OriginFinding::kGone, "no such file");
  const Origin elsewhere{.node_id = "b", .files = {{"/elsewhere", 1, 1}}};
  Import(elsewhere);
  Note(OriginFinding::kIntact);  // of the one before: it says nothing of this one
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  ASSERT_THAT(decision.unchecked_origins, SizeIs(1));
  EXPECT_EQ(decision.unchecked_origins[0].origin, elsewhere);
}

TEST_F(Origins, OfAnotherPublicationKeepWhatWasFoundOfThem) {
  Note(OriginFinding::kGone, "no such file");
  Import({.node_id = "a", .files = {{"/m", 1, 1}}});
  const EvictionDecision decision = Evict("a", "r");
  ASSERT_THAT(decision.unchecked_origins, SizeIs(1));
  EXPECT_EQ(decision.unchecked_origins[0].origin.node_id, "a");
}

TEST_F(Origins, OfASilentNodeDoNotCountAndItIsNotAskedAgainAtOnce) {
  Note(OriginFinding::kSilent);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("name-b, where it was imported, does not answer"));
  Pass(options_.origin_finding_age + absl::Nanoseconds(1));
  EXPECT_THAT(Evict("a", "r").unchecked_origins, SizeIs(1));
}

TEST_F(Origins, OnANodeThatIsAwayDoNotCount) {
  Note(OriginFinding::kIntact);
  now_ += options_.node_ttl + absl::Seconds(1);
  Beat("a");
  directory_.Tick(now_);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("node b, where it was imported, is away"));
}

TEST_F(Origins, AreNotLookedAtWhereAnotherReplicaStays) {
  Update("b", {SomeReplica("other", "x")});
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(Origins, OneThatIsIntactIsEnough) {
  Import({.node_id = "a", .files = {{"/n", 1, 1}}});
  Note(OriginFinding::kGone, "no such file");
  directory_.NoteOrigin("x", {.node_id = "a", .files = {{"/n", 1, 1}}}, OriginFinding::kIntact, "", now_);
  EXPECT_TRUE(Evict("a", "r").granted);
}

}  // namespace
}  // namespace tensorcast::global_store
