// What a daemon says of keys while its global store is away, was killed with it, or came back with less than
// it had: never what is older than it said before, and nothing that is not confirmed where that was asked.
#include <signal.h>

#include <filesystem>
#include <string>

#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr uint64_t kModelBytes = 1 << 20;

class Unconfirmed : public E2eTest {
 protected:
  void SetUp() override {
    E2eTest::SetUp();
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    StartCluster(options);
    for (int seed : {1, 2}) {
      const std::string model =
          MakeModel(absl::StrCat("model-", seed, ".safetensors"), kModelBytes, /*shards=*/1, seed);
      TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.durable = true}));
      ids_.push_back(put.artifact_id);
    }
  }
  void KillGlobalStore() {
    TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
    TC_ASSERT_OK(cluster_->global_store().Wait(SteadyNow() + kStepTimeout).status());
  }
  // The daemon connects again a moment after its global store is back.
  void RestartGlobalStore() {
    TC_ASSERT_OK(cluster_->RestartGlobalStore());
    const SteadyTime deadline = SteadyNow() + kStepTimeout;
    while (SteadyNow() < deadline) {
      TC_ASSERT_OK_AND_ASSIGN(const auto status, client(0).GetStatus(Context()));
      if (status.global_store_reachable) return;
    }
    FAIL() << "the daemon does not find its global store again";
  }
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--daemon", cluster_->addresses(0).unix_socket});
    return RunCommand(arguments);
  }

  std::vector<std::string> ids_;  // of two artifacts
};

TEST_F(Unconfirmed, ConfirmedReads_FailWhileTheGlobalStoreIsAway) {
  TC_ASSERT_OK(client(0).BindKey(Context(), "m", ids_[0]).status());
  TC_ASSERT_OK(client(0).ResolveKey(Context(), "m", /*confirmed=*/true).status());
  TC_ASSERT_OK(client(0).Get(Context(), "m", {.confirmed = true}).status());
  KillGlobalStore();
  TC_ASSERT_OK_AND_ASSIGN(const auto key, client(0).ResolveKey(Context(), "m"));
  EXPECT_TRUE(key.unconfirmed);

  const absl::Status resolved = client(0).ResolveKey(Context(), "m", /*confirmed=*/true).status();
  const absl::Status got = client(0).Get(Context(), "m", {.confirmed = true}).status();
  for (const absl::Status& refused : {resolved, got}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("resolve key m: "), HasSubstr("start the global store"),
                      HasSubstr("unconfirmed revision 1")));
  }
  TC_ASSERT_OK(client(0).Get(Context(), ids_[0], {.confirmed = true}).status());  // an id needs no word
  const std::vector<std::vector<std::string>> commands = {{"get", "m", "--confirmed"},
                                                          {"key", "resolve", "m", "--confirmed"}};
  for (const std::vector<std::string>& command : commands) {
    const CommandResult run = Run(command);
    EXPECT_EQ(run.exit_code, 1) << command[0];
    EXPECT_THAT(run.output, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("start the global store")));
  }
  // What has no place for the mark is not done under a doubtful name.
  const CommandResult pin = Run({"replica", "pin", "m"});
  EXPECT_EQ(pin.exit_code, 1);
  EXPECT_THAT(pin.output, HasSubstr("start the global store"));
  EXPECT_EQ(Run({"replica", "pin", ids_[0]}).exit_code, 0);

  ASSERT_NO_FATAL_FAILURE(RestartGlobalStore());
  TC_ASSERT_OK_AND_ASSIGN(const auto back, client(0).ResolveKey(Context(), "m", /*confirmed=*/true));
  EXPECT_FALSE(back.unconfirmed);
}

// Each time the file of the daemon that is killed had the binding before for long.
TEST_F(Unconfirmed, KilledDaemon_ReturnsNoKeyOlderThanAcknowledged) {
  for (const char* key : {"rebound", "deleted"}) {
    TC_ASSERT_OK(client(0).BindKey(Context(), key, ids_[0]).status());
  }
  ASSERT_EQ(cluster_->daemon(0).Stop(absl::Seconds(20)).value_or(-1), 0);
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto before, NewClient(0));
  TC_ASSERT_OK(before->BindKey(Context(), "rebound", ids_[1]).status());
  TC_ASSERT_OK(before->DeleteKey(Context(), "deleted"));
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(0).Wait(SteadyNow() + kStepTimeout).status());
  KillGlobalStore();

  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto after, NewClient(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto key, after->ResolveKey(Context(), "rebound"));
  EXPECT_TRUE(key.unconfirmed);
  EXPECT_EQ(key.artifact_id, ids_[1]);
  EXPECT_EQ(key.revision, 2u);
  const absl::Status deleted = after->ResolveKey(Context(), "deleted").status();
  EXPECT_EQ(deleted.code(), absl::StatusCode::kUnavailable) << deleted;
}

TEST_F(Unconfirmed, RestoredOldDatabase_KeysBelowSeenRevisionAreNotBelieved) {
  const fs::path metadata = cluster_->global_store_directory(0);
  const fs::path backup = directory_->path() + "/backup";
  for (const char* key : {"m", "deleted"}) TC_ASSERT_OK(client(0).BindKey(Context(), key, ids_[0]).status());
  ASSERT_EQ(cluster_->global_store().Stop(absl::Seconds(20)).value_or(-1), 0);
  fs::create_directories(backup);
  for (const auto& file : fs::directory_iterator(metadata)) {
    if (file.path().filename().string().starts_with("metadata.db")) fs::copy(file.path(), backup);
  }
  ASSERT_NO_FATAL_FAILURE(RestartGlobalStore());
  TC_ASSERT_OK(client(0).BindKey(Context(), "m", ids_[1]).status());
  TC_ASSERT_OK(client(0).DeleteKey(Context(), "deleted"));
  ASSERT_EQ(cluster_->global_store().Stop(absl::Seconds(20)).value_or(-1), 0);
  for (const auto& file : fs::directory_iterator(metadata)) {
    if (file.path().filename().string().starts_with("metadata.db")) fs::remove(file.path());
  }
  for (const auto& file : fs::directory_iterator(backup)) fs::copy(file.path(), metadata);
  ASSERT_NO_FATAL_FAILURE(RestartGlobalStore());

  TC_ASSERT_OK_AND_ASSIGN(const auto key, client(0).ResolveKey(Context(), "m"));
  EXPECT_EQ(key.artifact_id, ids_[1]);
  EXPECT_TRUE(key.unconfirmed);
  const absl::Status refused = client(0).ResolveKey(Context(), "m", /*confirmed=*/true).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("has revision 1"), HasSubstr("seen revision 2"),
                                                    HasSubstr("bind the key again")));
  const absl::Status deleted = client(0).ResolveKey(Context(), "deleted").status();
  EXPECT_EQ(deleted.code(), absl::StatusCode::kUnavailable) << deleted;

  // The new binding has the revision of the one that was lost, and is what the key means.
  TC_ASSERT_OK_AND_ASSIGN(const auto bound, client(0).BindKey(Context(), "m", ids_[0]));
  EXPECT_EQ(bound.revision, 2u);
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).ResolveKey(Context(), "m", /*confirmed=*/true));
  EXPECT_EQ(again.artifact_id, ids_[0]);
}

}  // namespace
}  // namespace tensorcast
