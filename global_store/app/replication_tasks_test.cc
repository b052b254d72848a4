// Tasks over a real socket: made, handed out, reported, cancelled, and kept over a restart.
#include <gmock/gmock.h>

#include <algorithm>

#include "global_store/app/global_store_fixture.h"

namespace tensorcast::global_store::replication_tasks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GlobalStoreTasks : public GlobalStoreServerTest {
 protected:
  void SetUp() override {
    GlobalStoreServerTest::SetUp();
    Register("source");
    Register("a");
    manifest_ = SomeManifest("1");
    ASSERT_TRUE(Publish(*manifest_, "source", "r").ok());
  }

  v1::ReplicateArtifactResponse Replicate(const std::vector<std::string>& nodes,
                                          const RequestContext& context = Context()) {
    v1::ReplicateArtifactRequest request;
    request.set_artifact_id(manifest_->id());
    for (const std::string& node : nodes) request.add_targets()->set_node_id(node);
    auto response = Call(&Stub::ReplicateArtifact, request, context);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::ReplicateArtifactResponse());
  }
  // A heartbeat with these reports; the tasks in its answer.
  std::vector<v1::ReplicationTask> BeatWith(const std::string& node,
                                            const std::vector<v1::ReplicationTaskReport>& reports) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Identity(node);
    for (const v1::ReplicationTaskReport& report : reports) *request.add_tasks() = report;
    const auto response = Call(&Stub::Heartbeat, request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->tasks().begin(), response->tasks().end()};
  }
  std::vector<v1::ReplicationTask> List() {
    v1::ListReplicationTasksRequest request;
    request.set_artifact_id(manifest_->id());
    const auto response = Call(&Stub::ListReplicationTasks, request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->tasks().begin(), response->tasks().end()};
  }
  static v1::ReplicationTaskReport ReportOf(const v1::ReplicationTask& task) {
    v1::ReplicationTaskReport report;
    report.set_task_id(task.task_id());
    return report;
  }

  std::shared_ptr<const Manifest> manifest_;
};

TEST_F(GlobalStoreTasks, Replicate_BringsTheFilesOfItsKeys) {
  const auto files = SomeFiles();
  const auto bound = PublishWithFiles(*manifest_, *files, "source", "k");
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(Replicate({"a"}).results_size(), 1);
  std::vector<std::string> handed;
  for (const v1::ReplicationTask& task : BeatWith("a", {})) handed.push_back(task.artifact_id());
  EXPECT_THAT(handed, ::testing::UnorderedElementsAre(manifest_->id(), files->id()));
}

TEST_F(GlobalStoreTasks, Cancel_EndsTheFilesThatNoOtherTaskWants) {
  const auto files = SomeFiles();
  ASSERT_TRUE(PublishWithFiles(*manifest_, *files, "source", "k").ok());
  Register("b");
  Replicate({"a", "b"});
  // The key of the next step has the same files, and node b waits for that step as well.
  const auto next = SomeManifest("2");
  ASSERT_TRUE(Publish(*next, "source", "r2", "next").ok());
  v1::BindKeyRequest bind;
  bind.set_key("next");
  bind.set_artifact_id(next->id());
  bind.set_files_id(files->id());
  ASSERT_TRUE(Call(&Stub::BindKey, bind).ok());
  v1::ReplicateArtifactRequest replicate;
  replicate.set_artifact_id(next->id());
  replicate.add_targets()->set_node_id("b");
  ASSERT_TRUE(Call(&Stub::ReplicateArtifact, replicate).ok());

  v1::CancelReplicationTasksRequest cancel;
  cancel.set_artifact_id(manifest_->id());
  const auto cancelled = Call(&Stub::CancelReplicationTasks, cancel);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  std::vector<std::string> gone;
  for (const v1::ReplicationTask& task : cancelled->tasks()) {
    gone.push_back(absl::StrCat(task.node_name(), task.artifact_id() == files->id() ? " files" : ""));
  }
  EXPECT_THAT(gone, ::testing::UnorderedElementsAre("a", "b", "a files"));
  EXPECT_THAT(BeatWith("a", {}), IsEmpty());
  EXPECT_THAT(BeatWith("b", {}), SizeIs(2)) << "the next step and its files";
}

TEST_F(GlobalStoreTasks, Replicate_AnswersEachTargetAndHandsTasksToNodes) {
  const v1::ReplicateArtifactResponse response = Replicate({"source", "a", "absent"});
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_EQ(response.results(0).replica_id(), "r") << "it is there";
  EXPECT_FALSE(response.results(0).has_task());
  EXPECT_EQ(response.results(1).task().state(), v1::REPLICATION_TASK_STATE_WAITING);
  EXPECT_EQ(response.results(1).task().node_name(), "a");
  EXPECT_THAT(response.results(2).error().message(), HasSubstr("absent"));

  std::vector<v1::ReplicationTask> handed = BeatWith("a", {});
  ASSERT_THAT(handed, SizeIs(1));
  EXPECT_EQ(handed[0].artifact_id(), manifest_->id());
  EXPECT_EQ(handed[0].location().kind(), v1::LOCATION_KIND_CPU);
  EXPECT_THAT(handed[0].traceparent(), ::testing::StartsWith("00-"));
  EXPECT_THAT(BeatWith("source", {}), IsEmpty());

  v1::ReplicationTaskReport report = ReportOf(handed[0]);
  report.set_bytes(5);
  report.set_bytes_total(16);
  EXPECT_THAT(BeatWith("a", {report}), SizeIs(1));
  ASSERT_THAT(List(), SizeIs(1));
  EXPECT_EQ(List()[0].state(), v1::REPLICATION_TASK_STATE_RUNNING);
  EXPECT_EQ(List()[0].bytes(), 5u);
  report.set_ended(true);
  report.mutable_error()->set_code(3);  // INVALID_ARGUMENT
  report.mutable_error()->set_message(std::string(5000, 'x'));
  EXPECT_THAT(BeatWith("a", {report}), IsEmpty());
  EXPECT_EQ(List()[0].state(), v1::REPLICATION_TASK_STATE_FAILED);
  EXPECT_EQ(List()[0].error().message().size(), 1000u);
}

TEST_F(GlobalStoreTasks, RepeatedReplicate_ReturnsSameTask) {
  const RequestContext context = Context();
  const v1::ReplicateArtifactResponse first = Replicate({"a"}, context);
  EXPECT_EQ(Replicate({"a"}, context).SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(Replicate({"a"}).results(0).task().task_id(), first.results(0).task().task_id());
}

TEST_F(GlobalStoreTasks, Task_SurvivesRestartUntilCancelled) {
  Replicate({"a"});
  const std::vector<v1::ReplicationTask> before = BeatWith("a", {});
  ASSERT_THAT(before, SizeIs(1));
  Restart();
  EXPECT_THAT(List()[0].waiting_for(), HasSubstr("a, which is away"));
  Register("a");
  const std::vector<v1::ReplicationTask> after = BeatWith("a", {ReportOf(before[0])});
  ASSERT_THAT(after, SizeIs(1));
  EXPECT_EQ(after[0].task_id(), before[0].task_id());
  EXPECT_EQ(Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest())->open_tasks(), 1u);

  v1::CancelReplicationTasksRequest cancel;
  cancel.set_artifact_id(manifest_->id());
  const auto cancelled = Call(&Stub::CancelReplicationTasks, cancel);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->tasks_size(), 1);
  EXPECT_THAT(BeatWith("a", {ReportOf(before[0])}), IsEmpty());
  Restart();
  EXPECT_THAT(List(), IsEmpty());
}

TEST_F(GlobalStoreTasks, WatchReplicationTasks_SendsListThenChanges) {
  Register("b");
  Replicate({"a"});
  const RequestContext context = Context();
  std::vector<std::string> told;
  v1::ReplicationTask handed;
  const absl::Status ended = rpc::CallServerStream(
      *stub_, &Stub::WatchReplicationTasks, context, v1::WatchReplicationTasksRequest(),
      [&](v1::WatchReplicationTasksResponse&& news) {
        const v1::ReplicationTask& task = news.task();
        const std::string line =
            news.listed() ? "listed"
                          : absl::StrCat(task.node_name(), news.gone() ? " gone" : "",
                                         task.state() == v1::REPLICATION_TASK_STATE_WAITING   ? " waits"
                                         : task.state() == v1::REPLICATION_TASK_STATE_RUNNING ? " runs"
                                                                                              : " ended",
                                         " at ", task.bytes());
        // How it ended is told again once it is durable.
        if (std::ranges::count(told, line) > 0) return absl::OkStatus();
        told.push_back(line);
        // Each is done once the one before was told, so nothing is left out in between.
        switch (told.size()) {
          case 2:
            handed = BeatWith("a", {})[0];
            break;
          case 3: {
            v1::ReplicationTaskReport report = ReportOf(handed);
            report.set_bytes(5);
            BeatWith("a", {report});
            break;
          }
          case 4: {
            v1::ReplicationTaskReport report = ReportOf(handed);
            report.set_ended(true);
            BeatWith("a", {report});
            break;
          }
          default:
            break;
        }
        const bool done = told.back().starts_with("a ended");
        if (done) Replicate({"b"});
        const bool waits = told.back().starts_with("b waits");
        if (waits) {
          v1::CancelReplicationTasksRequest cancel;
          cancel.set_artifact_id(manifest_->id());
          EXPECT_TRUE(Call(&Stub::CancelReplicationTasks, cancel).ok());
        }
        return told.back().starts_with("b gone") ? absl::CancelledError("enough") : absl::OkStatus();
      });
  EXPECT_THAT(ended.message(), HasSubstr("enough"));
  EXPECT_THAT(told, ::testing::ElementsAre("a waits at 0", "listed", "a runs at 0", "a runs at 5",
                                           "a ended at 0", "b waits at 0", "b gone waits at 0"));
}

TEST_F(GlobalStoreTasks, WatchReplicationTasks_EndsWhenStoreStops) {
  const absl::Status ended = rpc::CallServerStream(*stub_, &Stub::WatchReplicationTasks, Context(),
                                                   v1::WatchReplicationTasksRequest(),
                                                   [&](v1::WatchReplicationTasksResponse&& news) {
                                                     EXPECT_TRUE(news.listed());
                                                     server_.reset();
                                                     return absl::OkStatus();
                                                   });
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
}

TEST_F(GlobalStoreTasks, Replicate_RefusesUnknownArtifactAndLocation) {
  v1::ReplicateArtifactRequest request;
  request.set_artifact_id("tc2:nothing");
  request.add_targets()->set_node_id("a");
  EXPECT_TRUE(absl::IsNotFound(Call(&Stub::ReplicateArtifact, request).status()));
  request.set_artifact_id(manifest_->id());
  request.mutable_targets(0)->mutable_location()->set_kind(static_cast<v1::LocationKind>(77));
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::ReplicateArtifact, request).status()));
}

}  // namespace
}  // namespace tensorcast::global_store::replication_tasks_test
