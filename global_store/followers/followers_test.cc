#include "global_store/followers/followers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::followers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Artifacts v1 to v4, and the nodes a and b.
class FollowersTest : public DirectoryTest {
 protected:
  void SetUp() override {
    for (const char* artifact_id : {"v1", "v2", "v3", "v4"}) Publish(artifact_id);
    Register("a");
    Register("b");
  }
  FollowPlan Follow(const std::string& key, const std::vector<std::string>& nodes, Location location = {}) {
    FollowRequest request{.key = key, .targets = {}, .asked_by = "an operator"};
    for (const std::string& node : nodes) request.targets.push_back({.node = node, .location = location});
    absl::StatusOr<FollowPlan> plan = directory_.followers().Prepare(request, wall_now());
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    directory_.Apply(plan->facts, now_);
    return *std::move(plan);
  }
  // The artifacts that the node is handed.
  std::vector<std::string> Take(const std::string& node) {
    std::vector<std::string> artifacts;
    const auto taken = directory_.tasks().Take(Id(node), now_);
    EXPECT_TRUE(taken.ok()) << taken.status();
    if (!taken.ok()) return artifacts;
    for (const TaskRecord& task : *taken) artifacts.push_back(task.artifact_id);
    return artifacts;
  }
  // How the node's attempt at its only task ends.
  void End(const std::string& node, const absl::Status& status) {
    const auto taken = directory_.tasks().Take(Id(node), now_);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_THAT(*taken, SizeIs(1));
    const std::string& artifact_id = taken->front().artifact_id;
    if (status.ok()) Update(node, {SomeReplica("r-" + artifact_id, artifact_id)});
    ASSERT_TRUE(
        directory_.tasks().Note(Id(node), {{.task_id = taken->front().task_id, .ended = status}}).ok());
    Take(node);
  }
  void Evict(const std::string& node, const std::string& artifact_id) {
    Update(node, {SomeReplica("r-" + artifact_id, artifact_id, LocationKind::kCpu, ReplicaState::kGone)});
  }
  FollowerView Only() {
    const std::vector<FollowerView> views = directory_.followers().List("", "", 100);
    EXPECT_THAT(views, SizeIs(1));
    return views.empty() ? FollowerView() : views.front();
  }
};

TEST_F(FollowersTest, NewRevision_MakesTaskAndTakesBackOlderOne) {
  Follow("k", {"a"});
  EXPECT_THAT(Take("a"), IsEmpty()) << "the key is not bound yet";
  ASSERT_TRUE(Bind("k", "v1").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v1"));
  ASSERT_TRUE(Bind("k", "v2").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v2")) << "the older one is taken back while it runs";
  EXPECT_THAT(Take("b"), IsEmpty());
  End("a", absl::OkStatus());
  EXPECT_THAT(Take("a"), IsEmpty());
  EXPECT_EQ(Only().revision, 2u);
  EXPECT_EQ(Only().task->progress, TaskProgress::kDone);
  EXPECT_TRUE(directory_.tasks().PrepareSettle(wall_now()).empty()) << "nothing of it is durable";
  ASSERT_TRUE(Bind("k", "v3").ok());
  EXPECT_EQ(Only().newest_revision, 3u);
  EXPECT_EQ(Only().revision, 2u) << "the version before is there and kept";
}

TEST_F(FollowersTest, BoundEarlierArtifact_IsNewRevision) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  ASSERT_TRUE(Bind("k", "v2").ok());
  End("a", absl::OkStatus());
  ASSERT_TRUE(Bind("k", "v1").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v1"));
  End("a", absl::OkStatus());
  EXPECT_EQ(Only().revision, 3u);
}

TEST_F(FollowersTest, NodeThatWasAway_CatchesUpWithNewestVersionAlone) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  End("a", absl::OkStatus());
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  directory_.Tick(now_);
  ASSERT_TRUE(Bind("k", "v2").ok());
  ASSERT_TRUE(Bind("k", "v3").ok());
  EXPECT_THAT(Only().task->waiting_for, HasSubstr("away"));
  Register("a", 2);
  const auto taken = directory_.tasks().Take(Id("a", 2), now_);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_THAT(*taken, SizeIs(1));
  EXPECT_EQ(taken->front().artifact_id, "v3");
}

TEST_F(FollowersTest, NodeThatReportsNewestVersion_IsHandedNothing) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  const auto registered = directory_.RegisterNode(SomeNode("a", 2), {}, now_);
  ASSERT_TRUE(registered.ok());
  ASSERT_TRUE(directory_.ReconcileInventory(Id("a", 2), 0, {SomeReplica("r", "v1")}, now_).ok());
  EXPECT_THAT(*directory_.tasks().Take(Id("a", 2), now_), IsEmpty());
  EXPECT_THAT(directory_.tasks().List("", "", 10), IsEmpty());
}

TEST_F(FollowersTest, EvictedReplica_ComesAgainWithNextStartOfNode) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  End("a", absl::OkStatus());
  Evict("a", "v1");
  EXPECT_THAT(Take("a"), IsEmpty()) << "it would be evicted for ever";
  Register("a", 2);
  EXPECT_THAT(*directory_.tasks().Take(Id("a", 2), now_), SizeIs(1));
}

TEST_F(FollowersTest, FailedTask_DoesNotKeepNextVersionAway) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  End("a", absl::InvalidArgumentError("no such device"));
  EXPECT_EQ(Only().task->progress, TaskProgress::kFailed);
  EXPECT_THAT(Take("a"), IsEmpty());
  ASSERT_TRUE(Bind("k", "v2").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v2"));
  End("a", absl::UnavailableError("no source"));
  EXPECT_THAT(Take("a"), IsEmpty()) << "it pauses";
  now_ += absl::Minutes(1);
  EXPECT_THAT(Take("a"), ElementsAre("v2"));
}

TEST_F(FollowersTest, TaskOfOperator_StaysWhenKeyMovesOn) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  Take("a");
  const auto plan = directory_.tasks().Prepare(
      {.request_id = "w", .artifact_id = "v1", .targets = {{.node = "a"}}}, wall_now());
  ASSERT_TRUE(plan.ok());
  ASSERT_THAT(plan->facts.tasks, SizeIs(1)) << "the task of a follower is not the operator's";
  directory_.Apply(plan->facts, now_);
  ASSERT_TRUE(Bind("k", "v2").ok());
  EXPECT_THAT(Take("a"), testing::UnorderedElementsAre("v1", "v2"));
}

TEST_F(FollowersTest, RemovedFollower_EndsItsTaskUnlessAnotherKeyWantsIt) {
  Follow("k", {"a", "b"});
  Follow("l", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  ASSERT_TRUE(Bind("l", "v1").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v1"));
  const UnfollowPlan plan = directory_.followers().PrepareRemove("k", {}, 100);
  EXPECT_THAT(plan.followers, SizeIs(2));
  directory_.Apply(plan.facts, now_);
  EXPECT_THAT(Take("a"), ElementsAre("v1"));
  EXPECT_THAT(Take("b"), IsEmpty());
  directory_.Apply(directory_.followers().PrepareRemove("l", {{.node = "name-a"}}, 100).facts, now_);
  EXPECT_THAT(Take("a"), IsEmpty());
  EXPECT_EQ(directory_.followers().size(), 0u);
}

TEST_F(FollowersTest, RenamedNode_IsUnfollowedByItsNewName) {
  Follow("k", {"a", "b"});
  NodeFacts renamed = SomeNode("a", 2);
  renamed.name = "new";
  Register(renamed);
  NodeFacts heir = SomeNode("b", 2);
  heir.name = "name-a";
  Register(heir);
  const auto removed = [this](const std::string& node) {
    std::vector<std::string> ids;
    for (const FollowerRecord& record :
         directory_.followers().PrepareRemove("k", {{.node = node}}, 100).followers) {
      ids.push_back(record.node_id);
    }
    return ids;
  };
  EXPECT_THAT(removed("new"), ElementsAre("a"));
  EXPECT_THAT(removed("name-a"), ElementsAre("b")) << "it is the name of the other node now";
  EXPECT_THAT(removed("a"), ElementsAre("a"));
  EXPECT_THAT(removed("name-b"), ElementsAre("b")) << "no node has the name, so the last one that had it";
}

TEST_F(FollowersTest, ForgottenNode_LosesItsFollowers) {
  Follow("k", {"a", "b"});
  Follow("l", {"a"});
  directory_.Apply(directory_.followers().PrepareForget("a").facts, now_);
  EXPECT_EQ(Only().record.node_id, "b");
}

TEST_F(FollowersTest, DeletedKey_EndsTasksUntilItIsBoundAgain) {
  Follow("k", {"a"});
  ASSERT_TRUE(Bind("k", "v1").ok());
  EXPECT_THAT(Take("a"), SizeIs(1));
  ASSERT_TRUE(Unbind("k").ok());
  EXPECT_THAT(Take("a"), IsEmpty());
  ASSERT_TRUE(Bind("k", "v2").ok());
  EXPECT_THAT(Take("a"), ElementsAre("v2"));
}

TEST_F(FollowersTest, TargetThatCannotFollow_IsRefusedInItsResult) {
  const FollowPlan plan = Follow("k", {"absent", "a", "name-a"});
  EXPECT_TRUE(absl::IsNotFound(plan.places[0].error)) << plan.places[0].error;
  EXPECT_EQ(plan.places[2].follower.node_id, "a");
  EXPECT_THAT(plan.facts.followers, SizeIs(1)) << "a node that is named twice follows once";
  EXPECT_TRUE(absl::IsInvalidArgument(Follow("k", {"a"}, {LocationKind::kGpu, 3}).places[0].error));
  EXPECT_THAT(Follow("k", {"a"}).facts.followers, IsEmpty()) << "it follows already";
  EXPECT_TRUE(absl::IsInvalidArgument(directory_.followers().Prepare({.key = ""}, wall_now()).status()));
}

TEST_F(FollowersTest, FilesOfKey_ComeToHostMemoryOfTheNode) {
  directory_.Apply({.artifacts = {{.artifact_id = "f", .kind = ArtifactKind::kFiles}}}, now_);
  NodeFacts node = SomeNode("a", 2);
  node.devices.push_back({.ordinal = 0});
  Register(node);
  Follow("k", {"a"}, {LocationKind::kGpu, 0});
  const auto bound =
      directory_.catalog().PrepareBindKey({.key = "k", .artifact_id = "v1", .files_id = "f"}, wall_now());
  ASSERT_TRUE(bound.ok()) << bound.status();
  directory_.Apply(bound->facts, now_);
  std::vector<std::string> places;
  const auto taken = directory_.tasks().Take(Id("a", 2), now_);
  ASSERT_TRUE(taken.ok()) << taken.status();
  for (const TaskRecord& task : *taken) places.push_back(task.artifact_id + " " + task.location.ToString());
  EXPECT_THAT(places, testing::UnorderedElementsAre("v1 gpu:0", "f cpu"));
}

// Random keys, followers, nodes that come and go, ends of tasks, evictions and restarts of the store. A
// follower's task is always for the newest version of its key; when everything is quiet each follower has
// that version.
class RandomFollowers {
 public:
  explicit RandomFollowers(uint32_t seed) : random_(seed) { Restart(); }

  void Step() {
    now_ += absl::Milliseconds(Pick(3000));
    switch (Pick(9)) {
      case 0:
      case 1:
        return Publish();
      case 2:
        return Follow();
      case 3:
        return Unfollow();
      case 4:
        return Register(Name("n", 4));
      case 5:
        return Leave();
      case 6:
        return Evict();
      case 7:
        if (Pick(10) == 0) Restart();
        return;
      default:
        return Work(Name("n", 4), /*may_fail=*/true);
    }
  }
  void CheckTasks() {
    for (const TaskView& task : directory_->tasks().List("", "", 1000)) {
      const auto wants_it = [&](const FollowerView& view) {
        return view.record.node_id == task.record.node_id && view.artifact_id == task.record.artifact_id;
      };
      EXPECT_TRUE(std::ranges::any_of(List(), wants_it)) << task.record.task_id;
    }
  }
  void ExpectAllThereWhenQuiet() {
    directory_->Tick(now_);    // failed attempts pause from here on
    now_ += absl::Minutes(3);  // beyond the longest pause
    for (int node = 0; node < 4; ++node) Register("n" + std::to_string(node));
    for (int node = 0; node < 4; ++node) Work("n" + std::to_string(node), /*may_fail=*/false);
    for (const FollowerView& view : List()) {
      EXPECT_EQ(view.revision, view.newest_revision) << FollowerIdOf(view.record);
    }
  }

 private:
  int Pick(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  std::string Name(const std::string& prefix, int count) { return prefix + std::to_string(Pick(count)); }
  absl::Time wall() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }
  std::vector<FollowerView> List() { return directory_->followers().List("", "", 1000); }

  // What is durable is kept as the metadata store keeps it.
  void Apply(const DurableFacts& facts) {
    directory_->Apply(facts, now_);
    for (const ArtifactRecord& record : facts.artifacts) artifacts_[record.artifact_id] = record;
    for (const KeyRecord& record : facts.keys) keys_[record.name] = record;
    for (const FollowerRecord& record : facts.followers) {
      if (record.removed) {
        followers_.erase(FollowerIdOf(record));
      } else {
        followers_[FollowerIdOf(record)] = record;
      }
    }
  }
  void Restart() {
    DurableFacts facts;
    for (const auto& [id, record] : artifacts_) facts.artifacts.push_back(record);
    for (const auto& [name, record] : keys_) facts.keys.push_back(record);
    for (const auto& [id, record] : followers_) facts.followers.push_back(record);
    directory_ = std::make_unique<Directory>(DirectoryOptions(), &secrets_);
    directory_->Load(facts, now_);
    alive_.clear();
  }
  void Publish() {
    const std::string key = Name("k", 3);
    // Now and then an earlier one, which is a rollback.
    const std::string artifact_id = Pick(5) == 0 && versions_ > 0 ? "v" + std::to_string(Pick(versions_))
                                                                  : "v" + std::to_string(versions_++);
    Apply({.artifacts = {{.artifact_id = artifact_id, .created = wall(), .updated = wall()}}});
    const auto bound = directory_->catalog().PrepareBindKey({.key = key, .artifact_id = artifact_id}, wall());
    ASSERT_TRUE(bound.ok()) << bound.status();
    Apply(bound->facts);
  }
  void Follow() {
    const std::string node = Name("n", 4);
    if (!alive_.contains(node)) return;
    const auto plan =
        directory_->followers().Prepare({.key = Name("k", 3), .targets = {{.node = node}}}, wall());
    ASSERT_TRUE(plan.ok()) << plan.status();
    Apply(plan->facts);
  }
  void Unfollow() {
    if (Pick(3) == 0) {
      Apply(directory_->followers().PrepareRemove(Name("k", 3), {{.node = Name("n", 4)}}, 10).facts);
    }
  }
  // A new start of the node, with what it has.
  void Register(const std::string& node) {
    ASSERT_TRUE(directory_->RegisterNode(SomeNode(node, ++incarnation_), {}, now_).ok());
    alive_[node] = {node, incarnation_};
    std::vector<ReplicaInfo> held;
    for (const std::string& artifact_id : held_[node]) {
      held.push_back(SomeReplica("r-" + artifact_id, artifact_id));
    }
    sequence_[node] = 0;
    ASSERT_TRUE(directory_->ReconcileInventory(alive_[node], 0, held, now_).ok());
  }
  void Leave() {
    // All that are alive beat but one, until it counts as gone.
    const std::string node = Name("n", 4);
    alive_.erase(node);
    for (int i = 0; i < 6; ++i) {
      now_ += absl::Seconds(2);
      for (const auto& [name, identity] : alive_) {
        ASSERT_TRUE(directory_->Heartbeat(identity, {}, {}, sequence_[name], now_).ok());
      }
      directory_->Tick(now_);
    }
  }
  void Evict() {
    const std::string node = Name("n", 4);
    if (held_[node].empty()) return;
    const std::string artifact_id = *held_[node].begin();
    held_[node].erase(artifact_id);
    Report(node, SomeReplica("r-" + artifact_id, artifact_id, LocationKind::kCpu, ReplicaState::kGone));
  }
  void Report(const std::string& node, const ReplicaInfo& replica) {
    if (!alive_.contains(node)) return;
    ASSERT_TRUE(directory_->UpdateReplicas(alive_[node], ++sequence_[node], {replica}, now_).ok());
  }
  void Work(const std::string& node, bool may_fail) {
    if (!alive_.contains(node)) return;
    const auto taken = directory_->tasks().Take(alive_[node], now_);
    ASSERT_TRUE(taken.ok()) << node << ": " << taken.status();
    for (const TaskRecord& task : *taken) {
      const bool fails = may_fail && Pick(3) == 0;
      if (!fails && held_[node].insert(task.artifact_id).second) {
        Report(node, SomeReplica("r-" + task.artifact_id, task.artifact_id));
      }
      const absl::Status ended = !fails ? absl::OkStatus() : absl::UnavailableError("a fault");
      ASSERT_TRUE(directory_->tasks().Note(alive_[node], {{.task_id = task.task_id, .ended = ended}}).ok());
    }
  }

  std::mt19937 random_;
  CountingSecrets secrets_;
  std::unique_ptr<Directory> directory_;
  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  std::map<std::string, ArtifactRecord> artifacts_;
  std::map<std::string, KeyRecord> keys_;
  std::map<std::string, FollowerRecord> followers_;
  std::map<std::string, NodeIdentity> alive_;
  std::map<std::string, std::set<std::string>> held_;
  std::map<std::string, uint64_t> sequence_;
  uint64_t incarnation_ = 0;
  int versions_ = 0;
};

TEST(FollowersModel, RandomFaults_LeaveEachFollowerAtNewestVersion) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomFollowers model(seed);
    for (int step = 0; step < 400; ++step) {
      model.Step();
      if (step % 7 == 0) model.CheckTasks();
      if (::testing::Test::HasFailure()) return;
    }
    model.ExpectAllThereWhenQuiet();
  }
}

}  // namespace
}  // namespace tensorcast::global_store::followers_test
