// Where the time of a real transfer went, as a user asks for it.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/testing/eventually.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Explained : public E2eTest {
 protected:
  void SetUp() override {
    E2eTest::SetUp();
    if (HasFatalFailure()) return;
    StartCluster();
    if (HasFatalFailure()) return;
    const std::string model = MakeModel("model.safetensors", 40 << 20);
    TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
    TC_ASSERT_OK_AND_ASSIGN(replica_, client(1).Get(Context(), "m", {.location = "gpu:0", .lane = "tcp"}));
  }
  CommandResult OnNode(int node, std::vector<std::string> arguments) {
    arguments.push_back("--daemon");
    arguments.push_back(cluster_->addresses(node).unix_socket);
    return RunCommand(std::move(arguments));
  }

  std::unique_ptr<client::Replica> replica_;
};

TEST_F(Explained, ExplainLast_NamesLaneSourceAndBound) {
  const CommandResult result = OnNode(1, {"explain", "last"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("tcp"), HasSubstr("node-0"), HasSubstr("gpu:0"),
                                   HasSubstr("verify"), HasSubstr("place"), HasSubstr("Bounded by ")));

  const CommandResult json_result = OnNode(1, {"explain", "last", "--json"});
  const nlohmann::json json = nlohmann::json::parse(json_result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << json_result.output;
  EXPECT_EQ(json["transfer"]["transfer_id"], replica_->transfer()->transfer_id);
  EXPECT_THAT(json["analysis"]["bound"]["part"].get<std::string>(),
              AnyOf("queue", "start", "fetch", "verify", "place", "starved", "gaps", "finish"));
  EXPECT_EQ(json["analysis"]["stages"][0]["lane"], "tcp");

  // The source was asked, too, and both tell of the same bytes.
  EXPECT_THAT(result.output, HasSubstr("source node-0 (tcp): served "));
  ASSERT_EQ(json["analysis"]["sources"].size(), 1u);
  EXPECT_EQ(json["analysis"]["sources"][0]["known"], true);
  EXPECT_EQ(std::to_string(json["analysis"]["sources"][0]["bytes"].get<uint64_t>()),
            json["transfer"]["bytes"].get<std::string>());
}

TEST_F(Explained, ExplainWithSourceAway_SaysSourceIsNotKnown) {
  (void)cluster_->daemon(0).Stop(absl::ZeroDuration());
  const CommandResult result = OnNode(1, {"explain", "last"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("source node-0 (tcp): not known: "), HasSubstr("Bounded by ")));
}

TEST_F(Explained, ExplainByIdPrefixOrReplica_FindsTransfer) {
  const std::string& id = replica_->transfer()->transfer_id;
  for (const std::string& wanted : {id.substr(0, 8), replica_->replica_id()}) {
    const CommandResult result = OnNode(1, {"explain", wanted});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(id));
  }
  const CommandResult unknown = OnNode(1, {"explain", "no-such-transfer"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.output, HasSubstr(id));
}

TEST_F(Explained, TopOnce_ShowsNodesAndLastTransfers) {
  const CommandResult result = OnNode(0, {"top", "--once"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string& id = replica_->transfer()->transfer_id;
  EXPECT_THAT(result.output, AllOf(HasSubstr("node-0"), HasSubstr("node-1"), HasSubstr("gpu:1"),
                                   HasSubstr("tcp so far: "), HasSubstr(id.substr(0, 8))));
  EXPECT_THAT(result.output, Not(HasSubstr("no details")));
}

TEST_F(Explained, TopOnceWithNodeAway_ShowsTheOthers) {
  replica_.reset();
  (void)cluster_->daemon(1).Stop(absl::ZeroDuration());
  const CommandResult result = OnNode(0, {"top", "--once"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("node-0"));
  // The global store has forgotten it, or it is shown as one that says nothing.
  EXPECT_THAT(result.output, AnyOf(Not(HasSubstr("node-1")), HasSubstr("no details")));
}

// Nodes that stand for hosts of their own, so that they pull from each other.
class ExplainedBetweenHosts : public Explained {
 protected:
  void SetUp() override { E2eTest::SetUp(); }
  void StartHosts(int hosts, const std::string& setting_of_first, const std::string& setting_of_last = "") {
    ClusterOptions options = DefaultOptions();
    options.daemons = hosts;
    for (int host = 0; host < hosts; ++host) {
      options.settings_of_daemon.push_back({absl::StrCat("daemon.host_id=host-", host)});
    }
    if (!setting_of_first.empty()) options.settings_of_daemon[0].push_back(setting_of_first);
    if (!setting_of_last.empty()) options.settings_of_daemon.back().push_back(setting_of_last);
    StartCluster(options);
  }
  nlohmann::json ExplainedAsJson(int node) {
    const CommandResult result = OnNode(node, {"explain", "last", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  }
};

// One of three receivers takes 20 times as long as the others for what its own limit is.
TEST_F(ExplainedBetweenHosts, ExplainRollout_NamesSlowestNodeAndItsLimiter) {
  StartHosts(4, "", "daemon.limits.receive=8MiB");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 40 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  for (const int node : {1, 2, 3}) {
    TC_ASSERT_OK(client(node).Get(Context(), "m", {.lane = "tcp", .attach = false}).status());
  }
  // The ends of grants are told in the background.
  nlohmann::json json;
  ASSERT_TRUE(testing::Eventually([&] {
    json = nlohmann::json::parse(OnNode(0, {"explain", "--rollout", "m", "--json"}).output, nullptr,
                                 /*allow_exceptions=*/false);
    return json.is_object() && json["rollout"]["ended"] == 3 && json["causes"].size() == 3 &&
           json["causes"][0]["problem"] == "";
  })) << json;
  EXPECT_EQ(json["rollout"]["receivers"], 3);
  EXPECT_EQ(json["rollout"]["slowest"][0]["node_name"], "node-3");
  EXPECT_EQ(json["rollout"]["critical_path"].back()["node_name"], "node-3");
  EXPECT_EQ(json["rollout"]["worst_hop"]["node_name"], "node-3");
  EXPECT_EQ(json["causes"][0]["node"], "node-3");
  EXPECT_EQ(json["causes"][0]["cause"], "limiter") << json;
  const CommandResult page = OnNode(0, {"explain", "--rollout", "m", "--since", "10m"});
  EXPECT_EQ(page.exit_code, 0) << page.output;
  EXPECT_THAT(page.output, AllOf(HasSubstr("3 ended, 0 under way, 0 failed"), HasSubstr("limiter (node-3)"),
                                 HasSubstr("The hop with the largest delay: "), HasSubstr(" -> node-3.")));
  EXPECT_EQ(OnNode(0, {"explain", "--rollout", "no-such-key"}).exit_code, 1);
  EXPECT_EQ(OnNode(0, {"explain", "last", "--since", "1m"}).exit_code, 1);

  (void)cluster_->daemon(3).Stop(absl::ZeroDuration());
  const CommandResult away = OnNode(0, {"explain", "--rollout", "m"});
  EXPECT_EQ(away.exit_code, 0) << away.output;
  EXPECT_THAT(away.output, AnyOf(HasSubstr("node-3: the node's daemon did not explain the transfer: "),
                                 HasSubstr("node-3: the node is gone")));
}

TEST_F(ExplainedBetweenHosts, Status_ShowsReplicasAndGrantsConserved) {
  StartHosts(2, "");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 40 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "tcp", .attach = false}).status());
  ASSERT_TRUE(testing::Eventually(
      [&] { return absl::StrContains(OnNode(0, {"status"}).output, "conserved  replicas and grants"); }));
  EXPECT_THAT(OnNode(0, {"status"}).output, Not(HasSubstr("VIOLATED")));
}

TEST_F(ExplainedBetweenHosts, ExplainOfTwoSources_ShowsBothWithTheirBytes) {
  // The receiver takes its time, so that both sources have come before it ends.
  StartHosts(3, "daemon.limits.send=16MiB", "daemon.limits.receive=64MiB");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 40 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.attach = false}).status());
  TC_ASSERT_OK(client(2).Get(Context(), "m", {.attach = false}).status());
  const CommandResult result = OnNode(2, {"explain"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json json = ExplainedAsJson(2);
  ASSERT_TRUE(json.is_object());
  const nlohmann::json& sources = json["transfer"]["sources"];
  uint64_t bytes = 0;
  for (const nlohmann::json& source : sources) {
    if (source.contains("bytes")) bytes += std::stoull(source["bytes"].get<std::string>());
    EXPECT_THAT(result.output, HasSubstr(source["source"].get<std::string>()));
    EXPECT_FALSE(source.contains("filling")) << "both were ready";
  }
  EXPECT_EQ(sources.size(), 2u) << result.output;
  EXPECT_EQ(std::to_string(bytes), json["transfer"]["bytes"].get<std::string>());
  // Each was asked by this node's daemon for its side.
  for (const nlohmann::json& source : json["analysis"]["sources"]) EXPECT_EQ(source["known"], true) << source;
  EXPECT_EQ(json["analysis"]["bounding_hop"]["to"], "node-2");
}

TEST_F(ExplainedBetweenHosts, ReceiveLimit_IsNamedAsCause) {
  StartHosts(2, "", "daemon.limits.receive=16MiB");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 24 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.attach = false}).status());
  const nlohmann::json json = ExplainedAsJson(1);
  ASSERT_TRUE(json.is_object());
  const nlohmann::json& bound = json["analysis"]["bound"];
  EXPECT_EQ(bound["part"], "fetch") << json.dump(2);
  EXPECT_EQ(bound["cause"], "limiter") << json.dump(2);
  EXPECT_THAT(bound["why"].get<std::string>(), HasSubstr("daemon.limits.receive of this node"));
  EXPECT_EQ(json["analysis"]["bounding_hop"]["from"], "node-0");
}

// The limit keeps the transfer going for long enough to be stopped several times. It costs less than that.
TEST_F(ExplainedBetweenHosts, SourceStoppedMostOfTheTime_IsNamedAsCause) {
  StartHosts(2, "");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 128 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  absl::Notification over;
  std::thread stops([&] {
    while (!over.WaitForNotificationWithTimeout(absl::Milliseconds(40))) {
      (void)cluster_->daemon(0).Signal(SIGSTOP);
      absl::SleepFor(absl::Milliseconds(160));
      (void)cluster_->daemon(0).Signal(SIGCONT);
    }
  });
  const auto got = client(1).Get(Context(), "m", {.attach = false});
  over.Notify();
  stops.join();
  TC_ASSERT_OK(got.status());
  const nlohmann::json json = ExplainedAsJson(1);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["analysis"]["bound"]["part"], "fetch") << json.dump(2);
  EXPECT_EQ(json["analysis"]["bound"]["cause"], "stopped") << json.dump(2);
  EXPECT_EQ(json["analysis"]["bounding_hop"]["from"], "node-0") << json.dump(2);
}

// The middle one has half of it, and is given the rest by a source that may send no faster, when the last one
// comes: what that one is given by the source, and by the middle one later, comes at the source's pace.
TEST_F(ExplainedBetweenHosts, ExplainOfChain_NamesSlowSource) {
  StartHosts(3, "daemon.limits.send=8MiB");
  if (HasFatalFailure()) return;
  const std::string model = MakeModel("model.safetensors", 24 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  absl::Notification much_is_there;
  std::thread middle([&] {
    client::GetOptions options{.attach = false};
    options.on_progress = [&](const TransferProgress& progress) {
      const bool much = progress.bytes_done * 2 >= progress.bytes_total && progress.bytes_total > 0;
      if (much && !much_is_there.HasBeenNotified()) much_is_there.Notify();
    };
    const auto got = client(1).Get(Context(), "m", options);
    EXPECT_TRUE(got.ok()) << got.status();
  });
  const bool seen = much_is_there.WaitForNotificationWithTimeout(kStepTimeout);
  const auto got = client(2).Get(Context(), "m", {.attach = false});
  middle.join();
  ASSERT_TRUE(seen);
  TC_ASSERT_OK(got.status());
  const nlohmann::json json = ExplainedAsJson(2);
  ASSERT_TRUE(json.is_object());
  const nlohmann::json& hop = json["analysis"]["bounding_hop"];
  EXPECT_EQ(hop["from"], "node-0") << json.dump(2);
  // The last one pulls from the source, too: either link is at the source's pace.
  EXPECT_THAT(hop["to"].get<std::string>(), AnyOf("node-1", "node-2")) << json.dump(2);
  EXPECT_THAT(hop["why"].get<std::string>(), HasSubstr("daemon.limits.send of node-0 is 8.4 MB/s"));
  EXPECT_THAT(OnNode(2, {"explain"}).output, HasSubstr("Bounding hop: node-0 -> "));
}

}  // namespace
}  // namespace tensorcast
