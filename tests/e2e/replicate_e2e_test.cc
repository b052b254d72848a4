// `tensorcast replicate`: a model to other nodes, through restarts of all processes, and taken back.
#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Replicate : public E2eTest {
 protected:
  // Three nodes, the last one with a label, and a model on the first.
  ClusterOptions ThreeNodes() const {
    ClusterOptions options = DefaultOptions();
    options.daemons = 3;
    options.settings_of_daemon = {{}, {}, {"daemon.labels=zone=b"}};
    return options;
  }
  void Start(const ClusterOptions& options, uint64_t bytes = 20 << 20) {
    StartCluster(options);
    model_ = MakeModel("model.safetensors", bytes);
    TC_ASSERT_OK(client(0).Import(Context(), model_, {.key = "m"}).status());
  }
  // Through the daemon of the first node.
  CommandResult OnNode0(std::vector<std::string> command) {
    command.insert(command.end(), {"--daemon", cluster_->addresses(0).unix_socket});
    return RunCommand(std::move(command));
  }
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"replicate", "m"});
    return OnNode0(std::move(arguments));
  }
  nlohmann::json Tasks() {
    const CommandResult shown = OnNode0({"replication", "ls", "m", "--json"});
    EXPECT_EQ(shown.exit_code, 0) << shown.output;
    const nlohmann::json json = nlohmann::json::parse(shown.output, nullptr, /*allow_exceptions=*/false);
    return json.contains("tasks") ? json["tasks"] : nlohmann::json::array();
  }
  void AwaitState(const std::string& state) {
    EXPECT_TRUE(testing::Eventually([&] {
      const nlohmann::json tasks = Tasks();
      return tasks.size() == 1 && tasks[0]["state"] == state;
    })) << Tasks().dump();
  }
  size_t ReplicasAt(int node) {
    const auto admin = client::AdminClient::Connect(cluster_->addresses(node).unix_socket);
    EXPECT_TRUE(admin.ok()) << admin.status();
    if (!admin.ok()) return 99;
    const auto replicas = (*admin)->ListReplicas(Context(), "");
    return replicas.ok() ? replicas->size() : 99;
  }
  // What the node has is the model, and is there before any client gets it.
  void ExpectThere(int node, const std::string& device) {
    TC_ASSERT_OK_AND_ASSIGN(const auto fresh, NewClient(node));
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, fresh->Get(Context(), "m", {.location = device}));
    EXPECT_FALSE(replica->transfer().has_value()) << "it had to be brought";
    TC_ASSERT_OK(Compare(*replica, model_).status());
  }

  std::string model_;
};

TEST_F(Replicate, ReplicateToNamesOrLabels_BringsModelThere) {
  Start(ThreeNodes());
  const CommandResult named = Run({"--to", "node-1:gpu:1,node-0"});
  EXPECT_EQ(named.exit_code, 0) << named.output;
  EXPECT_THAT(named.output, HasSubstr("node-1:gpu:1"));
  ExpectThere(1, "gpu:1");

  const CommandResult labelled = Run({"--all", "--where", "zone=b"});
  EXPECT_EQ(labelled.exit_code, 0) << labelled.output;
  EXPECT_THAT(labelled.output, HasSubstr("node-2:cpu"));
  EXPECT_THAT(labelled.output, Not(HasSubstr("node-1")));
  ExpectThere(2, "cpu");

  const CommandResult all = Run({"--all", "--json"});
  EXPECT_EQ(all.exit_code, 0) << all.output;
  const nlohmann::json json = nlohmann::json::parse(all.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_EQ(json["results"].size(), 3u) << all.output;
  ExpectThere(1, "cpu");

  const CommandResult none = Run({"--all", "--where", "zone=c"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.output, HasSubstr("no registered node with the labels zone=c takes new replicas"));
}

TEST_F(Replicate, ReplicateWithImpossibleTarget_ReportsItAndServesOthers) {
  ClusterOptions options = ThreeNodes();
  options.settings_of_daemon[1] = {"daemon.host_pool=50MiB"};
  Start(options, 60 << 20);
  const CommandResult result = Run({"--to", "node-1,node-2,absent"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("missing at 2 of 3 places"));
  EXPECT_THAT(result.output, HasSubstr("bytes for replicas at cpu"));
  EXPECT_THAT(result.output, HasSubstr("absent:cpu: NOT_FOUND"));
  ExpectThere(2, "cpu");
}

TEST_F(Replicate, NodeAndGlobalStoreKilled_ReplicationTaskContinues) {
  ClusterOptions options = ThreeNodes();
  TC_ASSERT_OK_AND_ASSIGN(const auto faults, AddDeviceFaults(options, 1));
  Start(options);
  HoldCopies(*faults);
  EXPECT_EQ(Run({"--to", "node-1:gpu:0", "--no-wait"}).exit_code, 0);
  TC_ASSERT_OK(AwaitHeldCopy(*faults));
  AwaitState("REPLICATION_TASK_STATE_RUNNING");

  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(1).Wait(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  AwaitState("REPLICATION_TASK_STATE_WAITING");
  EXPECT_THAT(Tasks()[0].value("waiting_for", ""), HasSubstr("node-1, which is away"));

  faults->copy_delay_ns = 0;
  TC_ASSERT_OK(cluster_->RestartDaemon(1));
  const CommandResult again = Run({"--to", "node-1:gpu:0"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  ExpectThere(1, "gpu:0");
  AwaitState("REPLICATION_TASK_STATE_DONE");
}

TEST_F(Replicate, CancelledReplication_EndsAndLeavesNothing) {
  ClusterOptions options = ThreeNodes();
  TC_ASSERT_OK_AND_ASSIGN(const auto faults, AddDeviceFaults(options, 1));
  Start(options);
  HoldCopies(*faults);
  EXPECT_EQ(Run({"--to", "node-1:gpu:0", "--no-wait"}).exit_code, 0);
  TC_ASSERT_OK(AwaitHeldCopy(*faults));
  const CommandResult cancelled = OnNode0({"replication", "cancel", "m"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.output;
  EXPECT_THAT(cancelled.output, HasSubstr("cancelled node-1:gpu:0"));
  EXPECT_TRUE(Tasks().empty());
  faults->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Milliseconds(50));
  EXPECT_TRUE(testing::Eventually([&] { return ReplicasAt(1) == 0; }));
  EXPECT_THAT(OnNode0({"replication", "cancel", "m"}).output, HasSubstr("no unfinished task was found"));
}

TEST_F(Replicate, ArtifactRemoved_ReplicationTaskEnds) {
  ClusterOptions options = ThreeNodes();
  TC_ASSERT_OK_AND_ASSIGN(const auto faults, AddDeviceFaults(options, 1));
  Start(options);
  const std::string id = client(0).ResolveKey(Context(), "m")->artifact_id;
  HoldCopies(*faults);
  EXPECT_EQ(Run({"--to", "node-1:gpu:0", "--no-wait"}).exit_code, 0);
  TC_ASSERT_OK(AwaitHeldCopy(*faults));
  const CommandResult removed = OnNode0({"rm", "m"});
  EXPECT_EQ(removed.exit_code, 0) << removed.output;
  const CommandResult shown = OnNode0({"replication", "ls", id, "--json"});
  EXPECT_THAT(shown.output, Not(HasSubstr("task_id")));
  faults->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Milliseconds(50));
  EXPECT_TRUE(testing::Eventually([&] { return ReplicasAt(1) == 0; }));
}

}  // namespace
}  // namespace tensorcast
