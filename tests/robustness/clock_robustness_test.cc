// The clock of one machine of a cluster set by hours, forward and back (settable_clock.h).
#include <gmock/gmock.h>
#include <signal.h>

#include <optional>
#include <string>

#include "tests/robustness/robustness_test_base.h"
#include "tests/robustness/settable_clock.h"

namespace tensorcast {
namespace {

class ClockSet : public RobustnessTest {
 protected:
  void SetUp() override {
    if (const std::string missing = SettableClock::Missing(); !missing.empty()) GTEST_SKIP() << missing;
    RobustnessTest::SetUp();
    clock_.emplace(directory_->path());
  }

  // Everything works between two nodes: a put, a get over the network, a deletion told by heartbeat.
  void ExpectAllWorks(const std::string& key) {
    const std::string model = MakeModel(key + ".safetensors", 20 << 20, 1, std::hash<std::string>()(key));
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, key, model));
    {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), key, {.lane = "tcp"}));
      TC_ASSERT_OK(Compare(*replica, model).status());
    }
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
    TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
    invariants().Forget(key);
    TC_ASSERT_OK(client(0).DeleteKey(Context(), key, std::nullopt));
    TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
    TC_ASSERT_OK(admin->DeleteArtifact(Context(), put.artifact_id));
    for (int node : {0, 1}) {
      TC_ASSERT_OK_AND_ASSIGN(const auto there, Admin(node));
      TC_ASSERT_OK(invariants().Await(node, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
        TC_ASSIGN_OR_RETURN(const auto replicas, there->ListReplicas(Context(), put.artifact_id));
        if (replicas.empty()) return absl::OkStatus();
        return absl::InternalError("a deleted artifact's replica is left");
      }));
    }
  }

  std::optional<SettableClock> clock_;
};

TEST_F(ClockSet, ClockSetOnSourcesHost_GrantsStayValidAndNodeRegistered) {
  ClusterOptions options = FastOptions();
  options.daemon_environments = {clock_->environment()};
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  for (const char* offset : {"+6h", "-6h", "+0"}) {
    SCOPED_TRACE(offset);
    clock_->Set(offset);
    ExpectAllWorks(std::string("key") + offset);
  }
  EXPECT_EQ(FileTail(cluster_->daemon_directory(0) + "/log", 1000).find("registering again"),
            std::string::npos);
}

TEST_F(ClockSet, ClockSetOnReceiversHost_NothingEndsEarly) {
  ClusterOptions options = FastOptions();
  options.daemon_environments = {{}, clock_->environment()};
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  for (const char* offset : {"+6h", "-6h", "+0"}) {
    SCOPED_TRACE(offset);
    clock_->Set(offset);
    ExpectAllWorks(std::string("key") + offset);
  }
}

TEST_F(ClockSet, ClockSetOnGlobalStoresHost_NodesAndGrantsStayValid) {
  ClusterOptions options = FastOptions();
  options.global_store_environment = clock_->environment();
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  for (const char* offset : {"+6h", "-6h", "+0"}) {
    SCOPED_TRACE(offset);
    clock_->Set(offset);
    ExpectAllWorks(std::string("key") + offset);
  }
  EXPECT_EQ(FileTail(directory_->path() + "/global-store/log", 1000).find("sent no heartbeat for"),
            std::string::npos);
}

TEST_F(ClockSet, StoredTimesInTheFuture_GlobalStoreStillRestarts) {
  ClusterOptions options = FastOptions();
  options.global_store_environment = clock_->environment();
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  clock_->Set("+6h");
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  clock_->Set("-6h");
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  SettableClock::RemoveSharedMemoryOf(cluster_->global_store().pid());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  ExpectAllWorks("another");
}

}  // namespace
}  // namespace tensorcast
