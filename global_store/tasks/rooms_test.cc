// The tasks by themselves, without a directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "global_store/tasks/tasks.h"

namespace tensorcast::global_store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class FixedSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return "grant"; }
  std::string NewGrantKey() override { return "key"; }
};

class TasksRoom : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_.Apply(ArtifactRecord{.artifact_id = "x"});
    nodes_.Register({.node_id = "a", .name = "a", .incarnation = 1}, {}, now_);
    inventory_.Admit(*nodes_.Find("a"));
  }
  TaskPlan Prepare() {
    return *tasks_.Prepare(
        {.request_id = "q", .artifact_id = "x", .targets = {{.node = "a", .location = {}}}},
        absl::UnixEpoch());
  }
  void Apply(const DurableFacts& facts) {
    for (const TaskRecord& record : facts.tasks) tasks_.Apply(record, now_);
  }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  FixedSecrets secrets_;
  Catalog catalog_{Retention{}};
  Membership nodes_{{}, &secrets_};
  Inventory inventory_{nodes_, catalog_};
  Tasks tasks_{{}, nodes_, catalog_, inventory_};
};

TEST_F(TasksRoom, ReadyReplica_NeedsNoTask) {
  inventory_.Update("a", 1, {{.id = "r", .artifact_id = "x", .location = {}, .state = ReplicaState::kReady}});
  const TaskPlan plan = Prepare();
  EXPECT_THAT(plan.facts.tasks, IsEmpty());
  EXPECT_EQ(plan.places.front().replica_id, "r");
}

TEST_F(TasksRoom, FailedAttempt_IsTriedAgainAfterAPause) {
  Apply(Prepare().facts);
  ASSERT_THAT(*tasks_.Take({"a", 1}, now_), SizeIs(1));
  const TaskReport failed{.task_id = "q-0", .ended = absl::UnavailableError("no source")};
  ASSERT_TRUE(tasks_.Note({"a", 1}, {failed}).ok());
  EXPECT_TRUE(tasks_.HasToSettle());
  Apply(tasks_.PrepareSettle(absl::UnixEpoch()));
  EXPECT_THAT(*tasks_.Take({"a", 1}, now_), IsEmpty());
  now_ += TaskOptions().pauses.front();
  EXPECT_THAT(*tasks_.Take({"a", 1}, now_), SizeIs(1));
}

TEST_F(TasksRoom, NodeThatGoes_GivesItsTasksBack) {
  Apply(Prepare().facts);
  ASSERT_THAT(*tasks_.Take({"a", 1}, now_), SizeIs(1));
  EXPECT_EQ(tasks_.List("", "", 1).front().progress, TaskProgress::kRunning);
  inventory_.Remove(*nodes_.Find("a"), now_);
  nodes_.Remove("a");
  tasks_.NoteNodeGone("a");
  EXPECT_EQ(tasks_.List("", "", 1).front().waiting_for, "node a, which is away");
}

TEST_F(TasksRoom, DeletedArtifact_TakesItsTasksAlong) {
  Apply(Prepare().facts);
  tasks_.TakeChanged();
  tasks_.EraseOf("x");
  EXPECT_EQ(tasks_.CountOpen(), 0u);
  EXPECT_TRUE(tasks_.TakeChanged().front().gone);
}

}  // namespace
}  // namespace tensorcast::global_store
