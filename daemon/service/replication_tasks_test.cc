#include "daemon/service/replication_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon::replication_tasks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kOnlyAHang = absl::Seconds(20);

// Materialisations that end when the test says so, or when they are cancelled.
class TasksTest : public ::testing::Test {
 protected:
  absl::Status Materialize(const RequestContext& context, const v1::ReplicationTask& task,
                           const OnProgress& on_progress) {
    on_progress({.bytes_done = 3, .bytes_total = 7});
    const auto noted = context.cancellation.OnCancel([this, id = task.task_id()] {
      absl::MutexLock lock(&mutex_);
      cancelled_.insert(id);
    });
    absl::MutexLock lock(&mutex_);
    running_.insert(task.task_id());
    const auto over = [&] {
      return outcomes_.contains(task.task_id()) || cancelled_.contains(task.task_id());
    };
    mutex_.Await(absl::Condition(&over));
    running_.erase(task.task_id());
    const auto outcome = outcomes_.find(task.task_id());
    return outcome != outcomes_.end() ? outcome->second : absl::CancelledError("the test cancelled it");
  }
  void AwaitRunning(const std::set<std::string>& ids) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return running_ == ids; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), kOnlyAHang));
  }
  void EndWith(const std::string& id, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    const int before = ended_;
    outcomes_[id] = status;
    const auto told = [&] { return ended_ > before; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&told), kOnlyAHang));
  }
  std::vector<v1::ReplicationTaskReport> Report() {
    v1::HeartbeatRequest heartbeat;
    tasks_.Report(&heartbeat);
    return {heartbeat.tasks().begin(), heartbeat.tasks().end()};
  }
  static std::vector<std::string> IdsOf(const std::vector<v1::ReplicationTaskReport>& reports) {
    std::vector<std::string> ids;
    for (const v1::ReplicationTaskReport& report : reports) ids.push_back(report.task_id());
    return ids;
  }
  void Answer(const std::vector<std::string>& ids) {
    v1::HeartbeatResponse response;
    for (const std::string& id : ids) response.add_tasks()->set_task_id(id);
    tasks_.Answered(response);
  }

  absl::Mutex mutex_;
  std::set<std::string> running_;
  std::set<std::string> cancelled_;
  std::map<std::string, absl::Status> outcomes_;
  int ended_ = 0;
  ReplicationTasks tasks_{
      [this](const RequestContext& context, const v1::ReplicationTask& task, const OnProgress& on_progress) {
        return Materialize(context, task, on_progress);
      },
      [this] {
        absl::MutexLock lock(&mutex_);
        ++ended_;
      }};
};

TEST_F(TasksTest, Task_RunsOnceAndIsReportedUntilItsEndIsAcknowledged) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  std::vector<v1::ReplicationTaskReport> reports = Report();
  ASSERT_THAT(IdsOf(reports), ElementsAre("a", "b"));
  EXPECT_EQ(reports[0].bytes(), 3u);
  EXPECT_EQ(reports[0].bytes_total(), 7u);
  EXPECT_FALSE(reports[0].ended());

  EndWith("a", absl::OkStatus());
  EndWith("b", absl::ResourceExhaustedError("the pool is full"));
  // It ended after the report that is answered here.
  Answer({"a", "b"});
  for (int lost = 0; lost < 2; ++lost) {
    reports = Report();
    ASSERT_THAT(IdsOf(reports), ElementsAre("a", "b"));
    EXPECT_TRUE(reports[0].ended());
    EXPECT_FALSE(reports[0].has_error());
    EXPECT_EQ(rpc::FromProto(reports[1].error()), absl::ResourceExhaustedError("the pool is full"));
  }
  Answer({});
  EXPECT_THAT(Report(), IsEmpty());
}

TEST_F(TasksTest, OnlyTaskThatSucceeds_WaitsForTheNextHeartbeat) {
  const auto ended_calls = [this] {
    absl::MutexLock lock(&mutex_);
    return ended_;
  };
  Answer({"a"});
  AwaitRunning({"a"});
  {
    absl::MutexLock lock(&mutex_);
    outcomes_["a"] = absl::OkStatus();
  }
  ASSERT_TRUE(testing::Eventually([&] { return Report()[0].ended(); }));
  EXPECT_EQ(ended_calls(), 0) << "the replica's own report tells it";
  Answer({"b"});
  AwaitRunning({"b"});
  EndWith("b", absl::UnavailableError("no source"));
  EXPECT_EQ(ended_calls(), 1);
}

TEST_F(TasksTest, OmittedTask_IsCancelledAndNotReported) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  Answer({"b"});
  AwaitRunning({"b"});
  EXPECT_THAT(IdsOf(Report()), ElementsAre("b"));
}

TEST_F(TasksTest, TaskCutShortByStop_IsNotReportedAsFailed) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  tasks_.Drain();
  Answer({"a", "b", "c"});
  EXPECT_THAT(IdsOf(Report()), ElementsAre("a", "b"));
  EndWith("b", absl::OkStatus());
  tasks_.Stop();
  EXPECT_THAT(IdsOf(Report()), ElementsAre("b"));
  Answer({"c"});
  EXPECT_THAT(Report(), IsEmpty());
  AwaitRunning({});
}

}  // namespace
}  // namespace tensorcast::daemon::replication_tasks_test
