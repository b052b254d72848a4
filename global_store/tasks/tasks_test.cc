#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::tasks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Tasks : public DirectoryTest {
 protected:
  // An artifact x, and a node for each name.
  void Prepare(const std::vector<std::string>& nodes) {
    Publish("x");
    for (const std::string& node : nodes) Register(node);
  }
  std::vector<TaskPlacement> Replicate(const std::vector<std::string>& nodes,
                                       const std::string& artifact_id = "x", Location location = {}) {
    TaskRequest request{.request_id = absl::StrCat("w", ++requests_), .artifact_id = artifact_id};
    for (const std::string& node : nodes) request.targets.push_back({.node = node, .location = location});
    const absl::StatusOr<TaskPlan> plan = directory_.tasks().Prepare(request, wall_now());
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    directory_.Apply(plan->facts, now_);
    return plan->places;
  }
  // The ids of the tasks that the node is to work on.
  std::vector<std::string> Take(const std::string& node) {
    std::vector<std::string> ids;
    const auto taken = directory_.tasks().Take(Id(node), now_);
    EXPECT_TRUE(taken.ok()) << taken.status();
    for (const TaskRecord& task : *taken) ids.push_back(task.task_id);
    return ids;
  }
  void Report(const std::string& node, const TaskReport& report) {
    const absl::Status noted = directory_.tasks().Note(Id(node), {report});
    EXPECT_TRUE(noted.ok()) << noted;
  }
  DurableFacts Settle() {
    DurableFacts facts = directory_.tasks().PrepareSettle(wall_now());
    directory_.Apply(facts, now_);
    return facts;
  }
  std::vector<TaskView> List(const std::string& artifact_id = "x") {
    return directory_.tasks().List(artifact_id, "", 100);
  }
  TaskView Only() {
    const std::vector<TaskView> views = List();
    EXPECT_THAT(views, SizeIs(1));
    return views.empty() ? TaskView() : views.front();
  }

  int requests_ = 0;
};

TEST_F(Tasks, Task_IsHandedToItsNodeUntilDone) {
  Prepare({"a", "b"});
  const std::vector<TaskPlacement> places = Replicate({"a", "name-b"});
  ASSERT_THAT(places, SizeIs(2));
  EXPECT_EQ(places[1].node_id, "b") << "a node may be called by its name";
  ASSERT_TRUE(places[0].task.has_value());
  EXPECT_EQ(places[0].task->progress, TaskProgress::kWaiting);
  EXPECT_EQ(directory_.counts().open_tasks, 2u);

  const std::string id = places[0].task->record.task_id;
  EXPECT_THAT(Take("a"), ElementsAre(id));
  EXPECT_EQ(List()[0].progress, TaskProgress::kRunning);
  Report("a", {.task_id = id, .bytes = 5, .bytes_total = 9});
  EXPECT_EQ(List()[0].bytes, 5u);
  EXPECT_THAT(Take("a"), ElementsAre(id)) << "all that it is to work on, each time";

  Report("a", {.task_id = id, .ended = absl::OkStatus()});
  EXPECT_EQ(List()[0].progress, TaskProgress::kDone) << "before it is durable, too";
  EXPECT_THAT(Take("a"), IsEmpty());
  const DurableFacts facts = Settle();
  ASSERT_THAT(facts.tasks, SizeIs(1));
  EXPECT_EQ(facts.tasks[0].state, TaskState::kDone);
  EXPECT_FALSE(directory_.tasks().HasToSettle());
  EXPECT_EQ(directory_.counts().open_tasks, 1u);
  EXPECT_THAT(Take("a"), IsEmpty());
}

TEST_F(Tasks, Replicate_MakesNoTaskForWhatExistsOrHasOne) {
  Prepare({"a", "b"});
  Update("a", {SomeReplica("r", "x")});
  std::vector<TaskPlacement> places = Replicate({"a", "b", "b", "name-b"});
  EXPECT_EQ(places[0].replica_id, "r");
  EXPECT_FALSE(places[0].task.has_value());
  const std::string id = places[1].task->record.task_id;
  EXPECT_EQ(places[2].task->record.task_id, id);
  EXPECT_EQ(places[3].task->record.task_id, id);
  Take("b");
  places = Replicate({"b"});
  EXPECT_EQ(places[0].task->record.task_id, id) << "it goes on";
  EXPECT_EQ(places[0].task->progress, TaskProgress::kRunning);
  EXPECT_EQ(Only().record.task_id, id);
  // Another place of that node is another task.
  EXPECT_NE(Replicate({"b"}, "x", {LocationKind::kDisk})[0].task->record.task_id, id);
}

TEST_F(Tasks, FinishedTask_IsRepeatedOnlyWhenReplicaIsGone) {
  Prepare({"a"});
  const std::string first = Replicate({"a"})[0].task->record.task_id;
  Take("a");
  Update("a", {SomeReplica("r", "x")});
  Report("a", {.task_id = first, .ended = absl::OkStatus()});
  Settle();
  EXPECT_EQ(Replicate({"a"})[0].replica_id, "r");
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_THAT(Take("a"), IsEmpty()) << "it was requested once, not for ever";
  const std::string second = Replicate({"a"})[0].task->record.task_id;
  EXPECT_NE(second, first);
  // What is said of the one before is not taken for this one.
  Report("a", {.task_id = first, .ended = absl::InternalError("late")});
  EXPECT_FALSE(directory_.tasks().HasToSettle());
  EXPECT_THAT(Take("a"), ElementsAre(second));
}

TEST_F(Tasks, TargetThatIsNotAPlace_IsRefusedInItsResult) {
  Prepare({"a"});
  std::vector<TaskPlacement> places = Replicate({"absent", "a"});
  EXPECT_TRUE(absl::IsNotFound(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("absent"));
  EXPECT_TRUE(places[1].error.ok());
  places = Replicate({"a"}, "x", {LocationKind::kGpu, 3});
  EXPECT_TRUE(absl::IsInvalidArgument(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("no gpu:3"));
  directory_.Apply({.artifacts = {{.artifact_id = "x", .image_bytes = 100}}}, now_);
  ASSERT_TRUE(directory_.Heartbeat(Id("a"), {{.location = {}, .capacity_bytes = 99}}, {}, 0, now_).ok());
  places = Replicate({"a"});
  EXPECT_TRUE(absl::IsResourceExhausted(places[0].error)) << places[0].error;
  EXPECT_THAT(places[0].error.message(), HasSubstr("99 bytes for replicas at cpu"));
  EXPECT_THAT(List(), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(
      directory_.tasks().Prepare({.request_id = "w", .artifact_id = "unknown"}, wall_now()).status()));
}

TEST_F(Tasks, Node_GetsLimitedTasksAndKeepsThoseItRuns) {
  Prepare({"a"});
  for (const char* artifact_id : {"1", "2", "3", "4", "5", "6"}) {
    Publish(artifact_id);
    Replicate({"a"}, artifact_id);
    now_ += absl::Seconds(1);
  }
  EXPECT_THAT(Take("a"), ElementsAre("w1-0", "w2-0", "w3-0", "w4-0"));
  Report("a", {.task_id = "w1-0", .ended = absl::UnavailableError("no")});
  Settle();
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w3-0", "w4-0", "w5-0")) << "the first one pauses";
  now_ += absl::Seconds(5);
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w3-0", "w4-0", "w5-0")) << "and does not push another out";
  Report("a", {.task_id = "w3-0", .ended = absl::OkStatus()});
  EXPECT_THAT(Take("a"), ElementsAre("w2-0", "w4-0", "w5-0", "w1-0"));
}

TEST_F(Tasks, FailedTask_IsRetriedAfterGrowingPauses) {
  Prepare({"a"});
  Replicate({"a"});
  for (const absl::Duration pause : options_.tasks.pauses) {
    ASSERT_THAT(Take("a"), SizeIs(1));
    Report("a", {.task_id = "w1-0", .ended = absl::UnavailableError("no node has it")});
    EXPECT_EQ(Only().progress, TaskProgress::kWaiting);
    Settle();
    EXPECT_THAT(Only().waiting_for, HasSubstr("another attempt"));
    now_ += pause - absl::Seconds(1);
    EXPECT_THAT(Take("a"), IsEmpty());
    now_ += absl::Seconds(1);
  }
  ASSERT_THAT(Take("a"), SizeIs(1));
  Report("a", {.task_id = "w1-0", .ended = absl::UnavailableError("no node has it")});
  EXPECT_EQ(Only().progress, TaskProgress::kFailed);
  Settle();
  EXPECT_EQ(Only().record.failures, options_.tasks.pauses.size() + 1);
  EXPECT_EQ(Only().record.error, absl::UnavailableError("no node has it"));
  now_ += absl::Hours(1);
  EXPECT_THAT(Take("a"), IsEmpty());
  EXPECT_NE(Replicate({"a"})[0].task->record.task_id, "w1-0")
      << "it is tried anew when it is requested again";
}

TEST_F(Tasks, PermanentError_FailsTaskAtOnce) {
  Prepare({"a"});
  Replicate({"a"});
  Take("a");
  Report("a", {.task_id = "w1-0", .ended = absl::InvalidArgumentError("no such device")});
  Settle();
  EXPECT_EQ(Only().progress, TaskProgress::kFailed);
}

TEST_F(Tasks, TaskOfNodeThatIsAway_WaitsAndIsHandedOutAgain) {
  Prepare({"a"});
  Replicate({"a"});
  ASSERT_THAT(Take("a"), SizeIs(1));
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  directory_.Tick(now_);
  EXPECT_EQ(Only().progress, TaskProgress::kWaiting);
  EXPECT_EQ(Only().waiting_for, "node name-a, which is away");
  EXPECT_EQ(Replicate({"name-a"})[0].task->record.task_id, "w1-0") << "its name is known from the task";
  Register("a", 2);
  EXPECT_EQ(Only().waiting_for, "its turn on the node");
  EXPECT_THAT(*directory_.tasks().Take(Id("a", 2), now_), SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(directory_.tasks().Take(Id("a", 1), now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.tasks().Note(Id("a", 1), {})));
}

TEST_F(Tasks, DrainingNode_KeepsRunningTasksAndGetsNoNewOnes) {
  Prepare({"a"});
  Publish("y");
  Replicate({"a"});
  Take("a");
  Replicate({"a"}, "y");
  ASSERT_TRUE(directory_.DrainNode("a", true).ok());
  EXPECT_THAT(Take("a"), ElementsAre("w1-0"));
  EXPECT_EQ(List("y")[0].waiting_for, "node name-a, which drains");
  ASSERT_TRUE(directory_.DrainNode("a", false).ok());
  EXPECT_THAT(Take("a"), ElementsAre("w1-0", "w2-0"));
}

TEST_F(Tasks, CancelledTask_IsNoLongerHandedOut) {
  Prepare({"a", "b"});
  Replicate({"a", "b"});
  Take("a");
  CancelPlan plan = directory_.tasks().PrepareCancel("x", {{.node = "name-a"}}, wall_now());
  ASSERT_THAT(plan.tasks, SizeIs(1));
  EXPECT_EQ(plan.tasks[0].record.node_id, "a");
  directory_.Apply(plan.facts, now_);
  EXPECT_THAT(Take("a"), IsEmpty());
  Report("a", {.task_id = "w1-0", .ended = absl::OkStatus()});
  EXPECT_FALSE(directory_.tasks().HasToSettle());
  plan = directory_.tasks().PrepareCancel("x", {}, wall_now());
  EXPECT_THAT(plan.tasks, SizeIs(1)) << "every place";
  directory_.Apply(plan.facts, now_);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(directory_.tasks().PrepareCancel("x", {}, wall_now()).tasks, IsEmpty());
}

TEST_F(Tasks, Task_EndsWithItsArtifactButNotWithItsKey) {
  Prepare({"a"});
  Publish("y");
  Publish("x2");
  Replicate({"a"});
  Replicate({"a"}, "y");
  Replicate({"a"}, "x2");
  ASSERT_TRUE(Bind("k", "y").ok());
  ASSERT_TRUE(Bind("k", "x").ok());
  EXPECT_THAT(Take("a"), SizeIs(3));
  ASSERT_TRUE(Unbind("k").ok());
  Delete("x");
  EXPECT_THAT(Take("a"), SizeIs(2));
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(List("y"), SizeIs(1));
  EXPECT_THAT(List("x2"), SizeIs(1));
  EXPECT_EQ(directory_.counts().open_tasks, 2u);
}

TEST_F(Tasks, TasksRunningBeforeRestart_StayWithTheirNode) {
  Prepare({"a"});
  for (const char* artifact_id : {"1", "2", "3", "4", "5"}) {
    Publish(artifact_id);
    Replicate({"a"}, artifact_id);
    now_ += absl::Seconds(1);
  }
  DurableFacts facts;
  for (const TaskView& view : directory_.tasks().List("", "", 100)) facts.tasks.push_back(view.record);
  for (const char* artifact_id : {"1", "2", "3", "4", "5"}) {
    facts.artifacts.push_back({.artifact_id = artifact_id});
  }
  Directory restarted(options_, &secrets_);
  restarted.Load(facts, now_);
  ASSERT_TRUE(restarted.RegisterNode(SomeNode("a"), {}, now_).ok());
  // It worked on the last one when the store went away.
  ASSERT_TRUE(restarted.tasks().Note(Id("a"), {{.task_id = "w5-0"}}).ok());
  const auto taken = restarted.tasks().Take(Id("a"), now_);
  ASSERT_TRUE(taken.ok()) << taken.status();
  std::vector<std::string> ids;
  for (const TaskRecord& task : *taken) ids.push_back(task.task_id);
  EXPECT_THAT(ids, ElementsAre("w5-0", "w1-0", "w2-0", "w3-0"));
}

TEST_F(Tasks, EndedTask_IsForgottenAfterOneDay) {
  Prepare({"a"});
  Publish("y");
  Replicate({"a"});
  Replicate({"a"}, "y");
  Take("a");
  Report("a", {.task_id = "w1-0", .ended = absl::OkStatus()});
  Settle();
  directory_.tasks().Purge(wall_now());
  EXPECT_THAT(List(), SizeIs(1));
  now_ += kTaskAge + absl::Seconds(1);
  directory_.tasks().Purge(wall_now() - kTaskAge);
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(List("y"), SizeIs(1)) << "an open one stays";
}

TEST_F(Tasks, ListReplicationTasks_ReturnsPages) {
  Prepare({"a", "b", "c"});
  Replicate({"a", "b", "c"});
  std::vector<TaskView> page = directory_.tasks().List("x", "", 2);
  ASSERT_THAT(page, SizeIs(2));
  EXPECT_EQ(page[1].record.node_id, "b");
  page = directory_.tasks().List("x", TaskKeyOf(page[1].record), 2);
  ASSERT_THAT(page, SizeIs(1));
  EXPECT_EQ(page[0].record.node_id, "c");
  EXPECT_THAT(directory_.tasks().List("", "", 10), SizeIs(3));
  EXPECT_THAT(directory_.tasks().List("y", "", 10), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::global_store::tasks_test
