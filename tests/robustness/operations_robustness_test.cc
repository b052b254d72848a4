// Every operation is held in its middle, and then each process that takes part is killed, or stopped for
// longer than the others wait. The operation is held by a GPU with copies that do not end, or by a file on
// which reads or writes do not end (faulty_files.cc).
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/device/testing/device_faults.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/chaos/schedule.h"

namespace tensorcast {
namespace {

using chaos::Operation;
using chaos::Victim;
namespace fs = std::filesystem;

enum class Hold {
  kDeviceCopies,  // of the receiver's GPU
  kModelReads,    // of the file that is imported
  kPackedReads,
  kPackedWrites,
  kByItself,  // the client holds what it attached to for kHoldSeconds
};

struct Stage {
  Operation operation;
  Hold hold;
};

constexpr char kUcx[] = "ucx";

const Stage kStages[] = {
    {{.name = "PutIsFilling",
      .verb = "put",
      .node = 1,
      .location = "gpu:0",
      .writes = true,
      .source_is_receiver = true},
     Hold::kDeviceCopies},
    {{.name = "PutIsPacked", .verb = "durable-put", .node = 1, .writes = true, .source_is_receiver = true},
     Hold::kPackedWrites},
    {{.name = "ImportReads", .verb = "import", .node = 1, .writes = true, .source_is_receiver = true},
     Hold::kModelReads},
    {{.name = "GetReadsThePackedFile",
      .verb = "get",
      .node = 0,
      .lane = "disk",
      .drop_base_replica = true,
      .source_is_receiver = true},
     Hold::kPackedReads},
    {{.name = "GetPullsOverTcp", .verb = "get", .node = 1, .location = "gpu:0", .lane = "tcp"},
     Hold::kDeviceCopies},
    {{.name = "GetPullsOverUcx", .verb = "get", .node = 1, .location = "gpu:0", .lane = kUcx},
     Hold::kDeviceCopies},
    {{.name = "GetCopiesLocally", .verb = "get", .node = 1, .location = "gpu:0", .lane = "local"},
     Hold::kDeviceCopies},
    {{.name = "AttachedAndHolding", .verb = "hold", .node = 0, .source_is_receiver = true}, Hold::kByItself},
};

constexpr uint64_t kModelBytes = 24 << 20;
constexpr int kOperationSeconds = 20;
constexpr int kHoldSeconds = 2;
constexpr int kHeldLeases = 10;                             // of one client process
constexpr absl::Duration kStop = absl::Milliseconds(1500);  // beyond the peer timeout
constexpr char kBaseKey[] = "base";
constexpr char kRoundKey[] = "round";

using Case = std::tuple<int, Victim, int>;  // stage, victim, signal

// Every case begins and ends in the same state: the base artifact in node 0's memory and on its disk, and
// nothing else. In between the operation is held, a process is killed or stopped, and the operation is
// released. It may then fail or succeed, but the same operation, undisturbed, must succeed afterwards, and
// every process must hold what it held at the beginning.
class Operations : public RobustnessTest, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    if (operation().lane == kUcx) options.lanes = {kUcx};
    for (int node : {0, 1}) {
      TC_ASSERT_OK_AND_ASSIGN(faults_[node], AddDeviceFaults(options, node));
      Environment& environment = options.daemon_environments[node];
      environment.push_back({"LD_PRELOAD", TENSORCAST_FAULTY_FILES});
      environment.push_back({"FAULTY_FILES", Path("rules-", node)});
    }
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    base_model_ = MakeModel("base.safetensors", kModelBytes, 1, 1);
    round_model_ = MakeModel("round.safetensors", kModelBytes, 1, 2);
    TC_ASSERT_OK_AND_ASSIGN(const auto base, Import(0, kBaseKey, base_model_, /*durable=*/true));
    base_artifact_ = base.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(1, base_artifact_, 2));
    // Warm: what a process keeps once it did this is not a leak.
    Undisturbed();
    BackToNormal();
    TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  }

  const Stage& stage() const { return kStages[std::get<0>(GetParam())]; }
  const Operation& operation() const { return stage().operation; }
  Victim victim() const { return std::get<1>(GetParam()); }
  int signal() const { return std::get<2>(GetParam()); }
  std::string Path(std::string_view name, int node) const {
    return absl::StrCat(directory_->path(), "/", name, node);
  }
  const std::string& model() const { return operation().writes ? round_model_ : base_model_; }

  std::unique_ptr<Process> StartClient() {
    const int seconds = stage().hold == Hold::kByItself ? kHoldSeconds : kOperationSeconds;
    auto client =
        Process::Start({.argv = {TENSORCAST_CHAOS_VICTIM, cluster_->addresses(operation().node).unix_socket,
                                 operation().verb, operation().writes ? kRoundKey : kBaseKey,
                                 operation().location, operation().lane, model(), absl::StrCat(seconds)},
                        .log_path = directory_->path() + "/client.log",
                        .ready_pipe = true});
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->WaitReady(Soon()).ok());
    return *std::move(client);
  }
  std::string Said() const { return FileTail(directory_->path() + "/client.log", 1); }

  void Undisturbed() {
    ASSERT_NO_FATAL_FAILURE(Prepare());
    const auto client = StartClient();
    TC_ASSERT_OK_AND_ASSIGN(const int code, client->Wait(Soon()));
    ASSERT_EQ(code, 0) << Said();
    if (operation().writes) invariants().Acknowledge(kRoundKey, Said(), model());
  }

  void Prepare() {
    if (operation().drop_base_replica) TC_ASSERT_OK(DropReplicas(0, base_artifact_));
  }

  // The base artifact in node 0's memory and on its disk, and nothing else anywhere.
  void BackToNormal() {
    TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
    invariants().Forget(kRoundKey);
    const absl::Status unbound = client(0).DeleteKey(Context(), kRoundKey, std::nullopt);
    if (!absl::IsNotFound(unbound)) TC_ASSERT_OK(unbound);
    TC_ASSERT_OK_AND_ASSIGN(const auto artifacts,
                            admin->ListArtifacts(Context(), false, absl::ZeroDuration()));
    for (const v1::Artifact& artifact : artifacts) {
      if (artifact.artifact_id() == base_artifact_) continue;
      TC_ASSERT_OK(admin->DeleteArtifact(Context(), artifact.artifact_id()));
    }
    TC_ASSERT_OK(client(0).Get(Context(), base_artifact_, {}).status());
    // A lease of a client that was just killed may still be on it.
    TC_ASSERT_OK(invariants().Await(1, Soon(), [&](const auto&) { return DropReplicas(1, base_artifact_); }));
    for (int node : {0, 1}) {
      TC_ASSERT_OK(invariants().Await(node, Soon(), [&](const v1::GetStatusResponse& status) -> absl::Status {
        const uint32_t wanted = node == 0 ? 2 : 0;
        if (status.replicas() != wanted) {
          return absl::InternalError(absl::StrCat(status.replicas(), " replicas, not ", wanted));
        }
        // A GPU's memory outlives its replica until each process that had it open is known to be gone.
        for (const v1::Pool& pool : status.pools()) {
          if (pool.location().kind() != v1::LOCATION_KIND_GPU || pool.used_bytes() == 0) continue;
          return absl::InternalError(absl::StrCat(pool.used_bytes(), " bytes of a GPU are still in use"));
        }
        return absl::OkStatus();
      }));
    }
  }

  // A source that was restarted tells what it has a moment after it registered.
  void AwaitBaseIsOffered() {
    TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
    TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const v1::GetStatusResponse& status) -> absl::Status {
      TC_ASSIGN_OR_RETURN(
          const auto artifacts,
          admin->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration(), /*replicas=*/true));
      for (const v1::Artifact& artifact : artifacts) {
        if (artifact.artifact_id() != base_artifact_) continue;
        for (const v1::Replica& replica : artifact.replicas()) {
          if (replica.node_id() == status.node().node_id()) return absl::OkStatus();
        }
      }
      return absl::NotFoundError("node 0 offers no replica of the base artifact");
    }));
  }

  void HoldIt() {
    const std::string packed = cluster_->daemon_directory(operation().node) + "/artifacts/";
    const std::string middle = absl::StrCat(kModelBytes / 2, " ");
    switch (stage().hold) {
      case Hold::kDeviceCopies:
        faults_[operation().node]->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Hours(1));
        return;
      case Hold::kModelReads:
        return SetRule("read hold " + middle + round_model_);
      case Hold::kPackedReads:
        return SetRule("read hold " + middle + packed);
      case Hold::kPackedWrites:
        return SetRule("write hold " + middle + packed);
      case Hold::kByItself:
        return;
    }
  }
  // The operation is in the middle, and stays there.
  absl::Status AwaitHeld() {
    return invariants().Await(operation().node, Soon(), [&](const v1::GetStatusResponse& status) {
      bool held = false;
      switch (stage().hold) {
        case Hold::kDeviceCopies:
          held = faults_[operation().node]->delayed_copies > 0;
          break;
        case Hold::kModelReads:
        case Hold::kPackedReads:
        case Hold::kPackedWrites:
          held = fs::exists(Path("rules-", operation().node) + ".held");
          break;
        case Hold::kByItself:
          held = status.leases() == kHeldLeases && status.tickets() == 0;
          break;
      }
      return held ? absl::OkStatus() : absl::InternalError("the operation did not come to its middle");
    });
  }
  void Release() {
    for (int node : {0, 1}) {
      faults_[node]->copy_delay_ns = 0;
      fs::remove(Path("rules-", node));
      fs::remove(Path("rules-", node) + ".held");
    }
  }
  void SetRule(const std::string& rule) {
    const std::string path = Path("rules-", operation().node);
    std::ofstream(path + ".new") << rule << "\n";
    fs::rename(path + ".new", path);
  }

  Process& Target(Process& client) {
    switch (victim()) {
      case Victim::kSource:
        return cluster_->daemon(0);
      case Victim::kReceiver:
        return cluster_->daemon(operation().node);
      case Victim::kClient:
        return client;
      case Victim::kGlobalStore:
      case Victim::kOtherReceiver:  // there is none here, and no etcd
      case Victim::kEtcd:
        break;
    }
    return cluster_->global_store();
  }

  void Kill(Process& target) {
    TC_ASSERT_OK(target.Signal(SIGKILL));
    TC_ASSERT_OK(target.Wait(Soon()).status());
    if (!cluster_->global_store().running()) TC_ASSERT_OK(cluster_->RestartGlobalStore());
    for (int node : {0, 1}) {
      if (cluster_->daemon(node).running()) continue;
      // What holds the operation must not hold the new process, too.
      Release();
      faults_[node]->delayed_copies = 0;
      TC_ASSERT_OK(cluster_->RestartDaemon(node));
      Reconnect(node);
    }
  }

  std::shared_ptr<DeviceFaults> faults_[2];
  std::string base_model_;
  std::string round_model_;
  std::string base_artifact_;
};

TEST_P(Operations, ProcessKilledOrStoppedInOperation_NothingIsWrongOrLeft) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  HoldIt();
  const auto client = StartClient();
  TC_ASSERT_OK(AwaitHeld());
  Process& target = Target(*client);
  if (signal() == SIGKILL) {
    ASSERT_NO_FATAL_FAILURE(Kill(target));
    Release();
  } else {
    TC_ASSERT_OK(target.Signal(SIGSTOP));
    Release();
    // The wait is the time of the stop. If the client ends before, the others did not need the stopped
    // process.
    (void)client->Wait(SteadyNow() + kStop);
    TC_ASSERT_OK(target.Signal(SIGCONT));
  }
  TC_ASSERT_OK_AND_ASSIGN(const int code, client->Wait(SteadyNow() + absl::Seconds(kOperationSeconds + 15)));
  if (victim() == Victim::kClient && signal() == SIGSTOP && stage().hold == Hold::kDeviceCopies &&
      operation().writes) {
    // It still had bytes to stream, and was stopped for longer than the stall timeout.
    EXPECT_EQ(code, 1) << Said();
    EXPECT_THAT(Said(), ::testing::HasSubstr("the client has filled nothing for 1s"));
  } else if (victim() == Victim::kClient) {
    EXPECT_EQ(code, signal() == SIGKILL ? 128 + SIGKILL : 0) << Said();
  } else if (stage().hold == Hold::kByItself) {
    EXPECT_EQ(code, 0) << "what a client holds outlives all daemons: " << Said();
  } else {
    EXPECT_TRUE(code == 0 || code == 1) << code << ": " << Said();
  }
  if (code == 0 && operation().writes) invariants().Acknowledge(kRoundKey, Said(), model());

  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  for (const int node : {0, 1}) TC_ASSERT_OK(AwaitNoIngests(node));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon(), model()));
  ASSERT_NO_FATAL_FAILURE(AwaitBaseIsOffered());
  ASSERT_NO_FATAL_FAILURE(Undisturbed());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon(), model()));
  ASSERT_NO_FATAL_FAILURE(BackToNormal());
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int stage = 0; stage < static_cast<int>(std::size(kStages)); ++stage) {
    for (const Victim victim : {Victim::kSource, Victim::kReceiver, Victim::kClient, Victim::kGlobalStore}) {
      if (victim == Victim::kSource && kStages[stage].operation.source_is_receiver) continue;
      // Only what the source does depends on the lane.
      if (victim != Victim::kSource && kStages[stage].operation.lane == kUcx) continue;
      for (const int signal : {SIGKILL, SIGSTOP}) cases.emplace_back(stage, victim, signal);
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  constexpr const char* kVictims[] = {"Source", "Receiver", "Client", "GlobalStore"};
  const auto& [stage, victim, signal] = info.param;
  return absl::StrCat(kStages[stage].operation.name, "_", kVictims[static_cast<int>(victim)],
                      signal == SIGKILL ? "_Killed" : "_Stopped");
}

INSTANTIATE_TEST_SUITE_P(All, Operations, ::testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace tensorcast
