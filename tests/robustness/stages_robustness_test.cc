// Servers killed and stopped at named stages of a transfer, as a client's progress shows them.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

struct Stage {
  const char* name;
  double done;  // part of the bytes that has arrived
};

constexpr int kAttempts = 5;
// Of the receiver's GPU, for each of its 100 chunks: progress is told ten times a second, and has to pass
// each stage.
constexpr absl::Duration kCopyDelay = absl::Milliseconds(10);

constexpr Stage kStages[] = {{"FirstChunk", 0.0001}, {"Middle", 0.5}};

// Lane, stage, whether the source (or else the receiver) is hit, and the signal.
using Case = std::tuple<const char*, Stage, bool, int>;

class Stages : public RobustnessTest, public ::testing::WithParamInterface<Case> {
 protected:
  void HitAtStage(int node, client::GetOptions& get, double done, int signal) {
    get.on_progress = [this, node, done, signal](const TransferProgress& progress) {
      if (progress.bytes_total == 0 || hit_) return;
      if (static_cast<double>(progress.bytes_done) < done * static_cast<double>(progress.bytes_total)) return;
      if (!hit_.exchange(true)) (void)cluster_->daemon(node).Signal(signal);
    };
  }
  std::atomic<bool> hit_ = false;
};

TEST_P(Stages, DaemonHitAtStageOfGet_GetEndsAndNothingIsWrong) {
  const auto& [lane, stage, source_hit, signal] = GetParam();
  constexpr int kSource = 0;
  constexpr int kReceiver = 1;
  ClusterOptions options = FastOptions();
  options.lanes = {lane};
  TC_ASSERT_OK_AND_ASSIGN(const auto receivers_gpu, AddDeviceFaults(options, kReceiver));
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  const std::string model = MakeModel("model.safetensors", 100 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kSource, "m", model));
  TC_ASSERT_OK(AwaitReplicas(kSource, put.artifact_id, 1));

  const int victim = source_hit ? kSource : kReceiver;
  receivers_gpu->copy_delay_ns = absl::ToInt64Nanoseconds(kCopyDelay);
  // On a busy machine a transfer may be over before its progress was told, so there are several.
  for (int attempt = 0; attempt < kAttempts && !hit_; ++attempt) {
    client::GetOptions get{.location = "gpu:0", .lane = lane};
    HitAtStage(victim, get, stage.done, signal);
    auto pending = client(kReceiver).StartGet(Context(absl::Seconds(15)), "m", get);
    // Three seconds are longer than the peer timeout, so that the others of one that is stopped have to act.
    auto replica = pending->Wait(SteadyNow() + absl::Seconds(signal == SIGSTOP ? 3 : 30));
    if (signal == SIGSTOP && absl::IsDeadlineExceeded(replica.status())) {
      TC_ASSERT_OK(cluster_->daemon(victim).Signal(SIGCONT));
      replica = pending->Wait(SteadyNow() + absl::Seconds(30));
    }
    pending.reset();
    // The get may have ended without it, or its progress have been told only now.
    if (signal == SIGSTOP) TC_ASSERT_OK(cluster_->daemon(victim).Signal(SIGCONT));
    if (!replica.ok()) {
      EXPECT_FALSE(absl::IsDataLoss(replica.status()) || absl::IsInternal(replica.status()))
          << replica.status();
    } else if (!hit_) {
      TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(kReceiver));
      TC_ASSERT_OK(admin->EvictReplica(Context(), (*replica)->replica_id(), /*force=*/true));
    }
  }
  ASSERT_TRUE(hit_) << "none of " << kAttempts << " transfers was seen at this stage";
  receivers_gpu->copy_delay_ns = 0;

  if (signal == SIGKILL) {
    TC_ASSERT_OK(cluster_->daemon(victim).Wait(Soon()).status());
    TC_ASSERT_OK(cluster_->RestartDaemon(victim));
    Reconnect(victim);
  }
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  // A killed source reads the files of its import again.
  TC_ASSERT_OK(client(kSource).Get(Context(), "m", {}).status());
  // Others hear of the new replica a moment later.
  TC_ASSERT_OK(invariants().Await(
      kReceiver, Soon(), [&](const auto&) { return client(kReceiver).Get(Context(), "m", {}).status(); }));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto& [lane, stage, source_hit, signal] = info.param;
  return absl::StrCat(stage.name, source_hit ? "_Source" : "_Receiver",
                      signal == SIGKILL ? "_Killed" : "_Stopped");
}

INSTANTIATE_TEST_SUITE_P(OverTcp, Stages,
                         ::testing::Combine(::testing::Values("tcp"), ::testing::ValuesIn(kStages),
                                            ::testing::Bool(), ::testing::Values(SIGKILL, SIGSTOP)),
                         CaseName);
// What is UCX's own: a receiver that has to close by force what a peer that is gone, or says nothing, left.
INSTANTIATE_TEST_SUITE_P(OverUcx, Stages,
                         ::testing::Combine(::testing::Values("ucx"), ::testing::Values(kStages[1]),
                                            ::testing::Values(true), ::testing::Values(SIGKILL, SIGSTOP)),
                         CaseName);

}  // namespace
}  // namespace tensorcast
