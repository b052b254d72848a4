// Devices that run out of memory or fail copies, under real daemons: switched from here.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/device/testing/device_faults.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

class FaultyDevices : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    for (int node : {0, 1}) {
      TC_ASSERT_OK_AND_ASSIGN(faults_[node], AddDeviceFaults(options, node));
    }
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", 24 << 20);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
    // What node 1 keeps once it has pulled, it has now.
    TC_ASSERT_OK(client(1).Get(Context(), "m", OnGpu()).status());
    TC_ASSERT_OK(DropReplicas(1, artifact_));
    TC_ASSERT_OK(AwaitReplicas(0, artifact_, 1));
    TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  }

  static client::GetOptions OnGpu() { return {.location = "gpu:0", .lane = "tcp"}; }

  // A get that failed left nothing, and the next one works.
  void ExpectNothingIsLeftAndItWorks() {
    TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", OnGpu()));
    TC_ASSERT_OK(Compare(*replica, model_).status());
    TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  }

  std::shared_ptr<DeviceFaults> faults_[2];
  std::string model_;
  std::string artifact_;
};

TEST_F(FaultyDevices, GpuOutOfMemory_GetFailsAndNamesGpu) {
  faults_[1]->fail_allocations = 1;
  const auto got = client(1).Get(Context(), "m", OnGpu());
  EXPECT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted) << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("gpu:0"));
  EXPECT_EQ(faults_[1]->fail_allocations.load(), 0) << "the fault was not met";
  ExpectNothingIsLeftAndItWorks();
}

TEST_F(FaultyDevices, FirstCopyToGpuFails_NoReplicaIsMade) {
  faults_[1]->fail_copies = 1;
  const auto got = client(1).Get(Context(), "m", OnGpu());
  EXPECT_FALSE(got.ok());
  EXPECT_EQ(faults_[1]->fail_copies.load(), 0) << "the fault was not met";
  ExpectNothingIsLeftAndItWorks();
}

TEST_F(FaultyDevices, LaterCopyToGpuFails_NoReplicaIsMade) {
  HoldCopies(*faults_[1]);
  auto pending = client(1).StartGet(Context(), "m", OnGpu());
  TC_ASSERT_OK(AwaitHeldCopy(*faults_[1]));
  faults_[1]->fail_copies = 1;
  faults_[1]->copy_delay_ns = 0;
  EXPECT_FALSE(pending->Wait(SteadyNow() + kStepTimeout).ok());
  pending.reset();
  ExpectNothingIsLeftAndItWorks();
}

TEST_F(FaultyDevices, SourceWithUnreadableGpu_ServesNothingWrong) {
  TC_ASSERT_OK(client(0).Get(Context(), "m", {.location = "gpu:0"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), artifact_));
  for (const v1::Replica& replica : replicas) {
    if (replica.location().kind() != v1::LOCATION_KIND_CPU) continue;
    TC_ASSERT_OK(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
  }
  TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));  // on the GPU
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  // Else the node would read it and serve that.
  const std::string away = absl::StrCat(model_, ".away");
  std::filesystem::rename(model_, away);
  constexpr int kAllCopies = 1 << 20;
  faults_[0]->fail_copies = kAllCopies;
  const auto got = client(1).Get(Context(), "m", {.lane = "tcp"});
  EXPECT_FALSE(got.ok());
  EXPECT_LT(faults_[0]->fail_copies.load(), kAllCopies) << "the fault was not met";
  faults_[0]->fail_copies = 0;
  std::filesystem::rename(away, model_);
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*again, model_).status());
}

TEST_F(FaultyDevices, GpuBreaksDuringGet_IsUnhealthyAndNodeServesElsewhere) {
  const client::GetOptions on_other_gpu{.location = "gpu:1", .lane = "tcp"};
  const std::string second = MakeModel("second.safetensors", 24 << 20, /*shards=*/1, /*seed=*/2);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "n", second));
  TC_ASSERT_OK(client(1).Get(Context(), "n", OnGpu()).status());
  TC_ASSERT_OK_AND_ASSIGN(auto held, client(1).Get(Context(), "n", on_other_gpu));
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 3));

  HoldCopies(*faults_[1]);
  auto pending = client(1).StartGet(Context(), "m", OnGpu());
  TC_ASSERT_OK(AwaitHeldCopy(*faults_[1]));
  faults_[1]->poison_copies = 1;
  faults_[1]->copy_delay_ns = 0;
  const auto broken = pending->Wait(SteadyNow() + kStepTimeout);
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInternal) << broken.status();
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("gpu:0"));
  pending.reset();

  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 2));  // the global store knows that the one on it is gone
  const auto refused = client(1).Get(Context(), "n", OnGpu());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("use gpu:0: the GPU is unhealthy"));
  EXPECT_THAT(RunCommand({"status", "--daemon", cluster_->addresses(1).unix_socket}).output,
              HasSubstr("UNHEALTHY  gpu:0"));

  for (const client::GetOptions& good : {on_other_gpu, client::GetOptions{.lane = "tcp"}}) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", good));
    TC_ASSERT_OK(Compare(*replica, model_).status());
  }
  TC_ASSERT_OK(Compare(*held, second).status());
  held.reset();

  // It ends as ever, and with the process the fault is gone.
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGTERM));
  EXPECT_EQ(cluster_->daemon(1).Wait(Soon()).value_or(-1), 0);
  TC_ASSERT_OK(cluster_->RestartDaemon(1));
  Reconnect(1);
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(1).Get(Context(), "m", OnGpu()));
  TC_ASSERT_OK(Compare(*again, model_).status());
}

}  // namespace
}  // namespace tensorcast
