#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Wishes : public DirectoryTest {
 protected:
  // An artifact x, and a node for each name.
  void Prepare(const std::vector<std::string>& nodes) {
    Publish("x");
    for (const std::string& node : nodes) Register(node);
  }
  std::vector<WishedPlace> Wish(const std::vector<std::string>& nodes, const std::string& artifact_id = "x",
                                Location location = {}) {
    WishRequest request{.request_id = absl::StrCat("w", ++requests_), .artifact_id = artifact_id};
    for (const std::string& node : nodes) request.targets.push_back({.node = node, .location = location});
    const absl::StatusOr<WishPlan> plan = directory_.PrepareWishes(request, wall_now());
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    directory_.Apply(plan->facts, now_);
    return plan->places;
  }
  // The ids of the wishes that the node is to work on.
  std::vector<std::string> Take(const std::string& node) {
    std::vector<std::string> ids;
    const auto taken = directory_.TakeWishes(Id(node), now_);
    EXPECT_TRUE(taken.ok()) << taken.status();
    for (const WishRecord& wish : *taken) ids.push_back(wish.wish_id);
    return ids;
  }
  void Report(const std::string& node, const WishReport& report) {
    const absl::Status noted = directory_.NoteWishes(Id(node), {report});
    EXPECT_TRUE(noted.ok()) << noted;
  }
  DurableFacts Settle() {
    DurableFacts facts = directory_.PrepareSettleWishes(wall_now());
    directory_.Apply(facts, now_);
    return facts;
  }
  std::vector<WishView> List(const std::string& artifact_id = "x") {
    return directory_.ListWishes(artifact_id, "", 100);
  }
  WishView Only() {
    const std::vector<WishView> views = List();
    EXPECT_THAT(views, SizeIs(1));
    return views.empty() ? WishView() : views.front();
  }

  int requests_ = 0;
};

TEST_F(Wishes, AreHandedToTheirNodeUntilTheyAreDone) {
  Prepare({"a", "b"});
  const std::vector<WishedPlace> places = Wish({"a", "name-b"});
  ASSERT_THAT(places, SizeIs(2));
  EXPECT_EQ(places[1].node_id, "b") << "a node may be called by its name";
  ASSERT_TRUE(places[0].wish.has_value());
  EXPECT_EQ(places[0].wish->progress, WishProgress::kWaiting);
  EXPECT_EQ(directory_.counts().open_wishes, 2u);

  const std::string id = places[0].wish->record.wish_id;
  EXPECT_THAT(Take("a"), ElementsAre(id));
  EXPECT_EQ(List()[0].progress, WishProgress::kRunning);
  Report("a", {.wish_id = id, .bytes = 5, .bytes_total = 9});
  EXPECT_EQ(List()[0].bytes, 5u);
  EXPECT_THAT(Take("a"), ElementsAre(id)) << "all that it is to work on, each time";

  Report("a", {.wish_id = id, .ended = absl::OkStatus()});
  EXPECT_EQ(List()[0].progress, WishProgress::kDone) << "before it is durable, too";
  EXPECT_THAT(Take("a"), IsEmpty());
  const DurableFacts facts = Settle();
  ASSERT_THAT(facts.wishes, SizeIs(1));
  EXPECT_EQ(facts.wishes[0].state, WishState::kDone);
  EXPECT_FALSE(directory_.HasWishesToSettle());
  EXPECT_EQ(directory_.counts().open_wishes, 1u);
  EXPECT_THAT(Take("a"), IsEmpty());
}

TEST_F(Wishes, WhatIsThereIsNotWishedForAndWhatIsWishedForIsNotTwice) {
  Prepare({"a", "b"});
  Update("a", {SomeReplica("r", "x")});
  std::vector<WishedPlace> places = Wish({"a", "b", "b", "name-b"});
  EXPECT_EQ(places[0].replica_id, "r");
  EXPECT_FALSE(places[0].wish.has_value());
  const std::string id = places[1].wish->record.wish_id;
  EXPECT_EQ(places[2].wish->record.wish_id, id);
  EXPECT_EQ(places[3].wish->record.wish_id, id);
  Take("b");
  places = Wish({"b"});
  EXPECT_EQ(places[0].wish->record.wish_id, id) << "it goes on";
  EXPECT_EQ(places[0].wish->progress, WishProgress::kRunning);
  EXPECT_EQ(Only().record.wish_id, id);
  // Another place of that node is another wish.
  EXPECT_NE(Wish({"b"}, "x", {LocationKind::kDisk})[0].wish->record.wish_id, id);
}

TEST_F(Wishes, OneThatIsDoneIsMadeAnewOnlyWhenItsReplicaIsGone) {
  Prepare({"a"});
  const std::string first = Wish({"a"})[0].wish->record.wish_id;
  Take("a");
  Update("a", {SomeReplica("r", "x")});
  Report("a", {.wish_id = first, .ended = absl::OkStatus()});
  Settle();
  EXPECT_EQ(Wish({"a"})[0].replica_id, "r");
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_THAT(Take("a"), IsEmpty()) << "it was wished for once, not for ever";
  const std::string second = Wish({"a"})[0].wish->record.wish_id;
  EXPECT_NE(second, first);
  // What is said of the one before is not taken for this one.
  Report("a", {.wish_id = first, .ended = absl::InternalError("late")});
  EXPECT_FALSE(directory_.HasWishesToSettle());
  EXPECT_THAT(Take("a"), ElementsAre(second));
}

TEST_F(Wishes, ATargetThatIsNoPlaceIsRefusedInItsPlace) {
  Prepare({"a"});
  std::vector<WishedPlace> places = Wish({"nobody", "a"});
  EXPECT_TRUE(absl::IsNotFound(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("nobody"));
  EXPECT_TRUE(places[1].error.ok());
  places = Wish({"a"}, "x", {LocationKind::kGpu, 3});
  EXPECT_TRUE(absl::IsInvalidArgument(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("no gpu:3"));
  directory_.Apply({.artifacts = {{.artifact_id = "x", .image_bytes = 100}}}, now_);
  ASSERT_TRUE(directory_.Heartbeat(Id("a"), {{.location = {}, .capacity_bytes = 99}}, {}, 0, now_).ok());
  places = Wish({"a"});
  EXPECT_TRUE(absl::IsResourceExhausted(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("99 bytes for replicas at cpu"));
  EXPECT_THAT(List(), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(
      directory_.PrepareWishes({.request_id = "w", .artifact_id = "unknown"}, wall_now()).status()));
}

TEST_F(Wishes, ANodeHasAFewAtOnceAndKeepsThoseThatItWorksOn) {
  Prepare({"a"});
  for (const char* artifact_id : {"1", "2", "3", "4", "5", "6"}) {
    Publish(artifact_id);
    Wish({"a"}, artifact_id);
    now_ += absl::Seconds(1);
  }
  EXPECT_THAT(Take("a"), ElementsAre("w1-0", "w2-0", "w3-0", "w4-0"));
  Report("a", {.wish_id = "w1-0", .ended = absl::UnavailableError("no")});
  Settle();
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w3-0", "w4-0", "w5-0")) << "the first one pauses";
  now_ += absl::Seconds(5);
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w3-0", "w4-0", "w5-0")) << "and does not push another out";
  Report("a", {.wish_id = "w3-0", .ended = absl::OkStatus()});
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w4-0", "w5-0", "w1-0"));
}

TEST_F(Wishes, AreTriedAgainAfterGrowingPausesAndThenFail) {
  Prepare({"a"});
  Wish({"a"});
  for (const absl::Duration pause : options_.wish_pauses) {
    ASSERT_THAT(Take("a"), SizeIs(1));
    Report("a", {.wish_id = "w1-0", .ended = absl::UnavailableError("nobody has it")});
    EXPECT_EQ(Only().progress, WishProgress::kWaiting);
    Settle();
    EXPECT_THAT(Only().waiting_for, HasSubstr("another attempt"));
    now_ += pause - absl::Seconds(1);
    EXPECT_THAT(Take("a"), IsEmpty());
    now_ += absl::Seconds(1);
  }
  ASSERT_THAT(Take("a"), SizeIs(1));
  Report("a", {.wish_id = "w1-0", .ended = absl::UnavailableError("nobody has it")});
  EXPECT_EQ(Only().progress, WishProgress::kFailed);
  Settle();
  EXPECT_EQ(Only().record.failures, options_.wish_pauses.size() + 1);
  EXPECT_EQ(Only().record.error, absl::UnavailableError("nobody has it"));
  now_ += absl::Hours(1);
  EXPECT_THAT(Take("a"), IsEmpty());
  EXPECT_NE(Wish({"a"})[0].wish->record.wish_id, "w1-0") << "it is tried anew when it is wished for again";
}

TEST_F(Wishes, AnErrorThatAnotherAttemptCannotChangeEndsThemAtOnce) {
  Prepare({"a"});
  Wish({"a"});
  Take("a");
  Report("a", {.wish_id = "w1-0", .ended = absl::InvalidArgumentError("no such device")});
  Settle();
  EXPECT_EQ(Only().progress, WishProgress::kFailed);
}

TEST_F(Wishes, WaitForANodeThatIsAwayAndAreHandedToItAnew) {
  Prepare({"a"});
  Wish({"a"});
  ASSERT_THAT(Take("a"), SizeIs(1));
  now_ += options_.node_ttl + absl::Seconds(1);
  directory_.Tick(now_);
  EXPECT_EQ(Only().progress, WishProgress::kWaiting);
  EXPECT_EQ(Only().waiting_for, "node name-a, which is away");
  EXPECT_EQ(Wish({"name-a"})[0].wish->record.wish_id, "w1-0") << "its name is known from the wish";
  Register("a", 2);
  EXPECT_EQ(Only().waiting_for, "its turn on its node");
  EXPECT_THAT(*directory_.TakeWishes(Id("a", 2), now_), SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(directory_.TakeWishes(Id("a", 1), now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.NoteWishes(Id("a", 1), {})));
}

TEST_F(Wishes, ANodeThatDrainsEndsWhatItHasAndBeginsNothing) {
  Prepare({"a"});
  Publish("y");
  Wish({"a"});
  Take("a");
  Wish({"a"}, "y");
  ASSERT_TRUE(directory_.DrainNode("a", true).ok());
  EXPECT_THAT(Take("a"), ElementsAre("w1-0"));
  EXPECT_EQ(List("y")[0].waiting_for, "node name-a, which drains");
  ASSERT_TRUE(directory_.DrainNode("a", false).ok());
  EXPECT_THAT(Take("a"), ElementsAre("w1-0", "w2-0"));
}

TEST_F(Wishes, CancelledOnesAreNoLongerHandedOut) {
  Prepare({"a", "b"});
  Wish({"a", "b"});
  Take("a");
  CancelPlan plan = directory_.PrepareCancelWishes("x", {{.node = "name-a"}}, wall_now());
  ASSERT_THAT(plan.wishes, SizeIs(1));
  EXPECT_EQ(plan.wishes[0].record.node_id, "a");
  directory_.Apply(plan.facts, now_);
  EXPECT_THAT(Take("a"), IsEmpty());
  Report("a", {.wish_id = "w1-0", .ended = absl::OkStatus()});
  EXPECT_FALSE(directory_.HasWishesToSettle());
  plan = directory_.PrepareCancelWishes("x", {}, wall_now());
  EXPECT_THAT(plan.wishes, SizeIs(1)) << "every place";
  directory_.Apply(plan.facts, now_);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(directory_.PrepareCancelWishes("x", {}, wall_now()).wishes, IsEmpty());
}

TEST_F(Wishes, GoWithTheirArtifactAndStayWhenItsKeyIsBoundAnew) {
  Prepare({"a"});
  Publish("y");
  Publish("x2");
  Wish({"a"});
  Wish({"a"}, "y");
  Wish({"a"}, "x2");
  ASSERT_TRUE(Bind("k", "y").ok());
  ASSERT_TRUE(Bind("k", "x").ok());
  EXPECT_THAT(Take("a"), SizeIs(3));
  ASSERT_TRUE(Unbind("k").ok());
  Delete("x");
  EXPECT_THAT(Take("a"), SizeIs(2));
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(List("y"), SizeIs(1));
  EXPECT_THAT(List("x2"), SizeIs(1));
  EXPECT_EQ(directory_.counts().open_wishes, 2u);
}

TEST_F(Wishes, SurviveARestartAndThoseUnderWayAreKeptByTheirNode) {
  Prepare({"a"});
  for (const char* artifact_id : {"1", "2", "3", "4", "5"}) {
    Publish(artifact_id);
    Wish({"a"}, artifact_id);
    now_ += absl::Seconds(1);
  }
  DurableFacts facts;
  for (const WishView& view : directory_.ListWishes("", "", 100)) facts.wishes.push_back(view.record);
  for (const char* artifact_id : {"1", "2", "3", "4", "5"}) {
    facts.artifacts.push_back({.artifact_id = artifact_id});
  }
  Directory restarted(options_, &secrets_);
  restarted.Load(facts, now_);
  ASSERT_TRUE(restarted.RegisterNode(SomeNode("a"), {}, now_).ok());
  // It worked on the last one when the store went away.
  ASSERT_TRUE(restarted.NoteWishes(Id("a"), {{.wish_id = "w5-0"}}).ok());
  const auto taken = restarted.TakeWishes(Id("a"), now_);
  ASSERT_TRUE(taken.ok()) << taken.status();
  std::vector<std::string> ids;
  for (const WishRecord& wish : *taken) ids.push_back(wish.wish_id);
  EXPECT_THAT(ids, ElementsAre("w5-0", "w1-0", "w2-0", "w3-0"));
}

TEST_F(Wishes, EndedOnesAreForgottenAfterADay) {
  Prepare({"a"});
  Publish("y");
  Wish({"a"});
  Wish({"a"}, "y");
  Take("a");
  Report("a", {.wish_id = "w1-0", .ended = absl::OkStatus()});
  Settle();
  directory_.PurgeWishes(wall_now());
  EXPECT_THAT(List(), SizeIs(1));
  now_ += kWishAge + absl::Seconds(1);
  directory_.PurgeWishes(wall_now() - kWishAge);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(List("y"), SizeIs(1)) << "an open one stays";
}

TEST_F(Wishes, AreListedInPages) {
  Prepare({"a", "b", "c"});
  Wish({"a", "b", "c"});
  std::vector<WishView> page = directory_.ListWishes("x", "", 2);
  ASSERT_THAT(page, SizeIs(2));
  EXPECT_EQ(page[1].record.node_id, "b");
  page = directory_.ListWishes("x", Directory::PlaceOf(page[1].record), 2);
  ASSERT_THAT(page, SizeIs(1));
  EXPECT_EQ(page[0].record.node_id, "c");
  EXPECT_THAT(directory_.ListWishes("", "", 10), SizeIs(3));
  EXPECT_THAT(directory_.ListWishes("y", "", 10), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::global_store
