// Bytes that change unnoticed, on the wire and in a source's memory: they are fetched from
// another source, the one that sent them is reported and digests its replica again, and no client sees them.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "tests/e2e/process_memory.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 24 << 20;
constexpr size_t kNeedleBytes = 256;

// Three nodes, each on a host of its own. Node 0 has the model in memory, node 1 has it on
// disk, node 2 wants it.
class WrongBytes : public RobustnessTest {
 protected:
  static constexpr int kBad = 0;
  static constexpr int kGood = 1;
  static constexpr int kReceiver = 2;

  void SetUp() override {
    RobustnessTest::SetUp();
    rules_ = directory_->path() + "/rules";
    ClusterOptions options = FastOptions();
    options.daemons = 3;
    for (int node = 0; node < options.daemons; ++node) {
      options.settings_of_daemon.push_back({absl::StrCat("daemon.host_id=host-", node)});
    }
    // The bad source has something left to give, however late it is connected to.
    options.settings_of_daemon[kGood].push_back("daemon.limits.send=16MiB");
    options.daemon_environments = {{{"LD_PRELOAD", TENSORCAST_FAULTY_FILES}, {"FAULTY_FILES", rules_}}};
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kGood, "m", model_, /*durable=*/true));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(kBad, artifact_, 2));
    TC_ASSERT_OK(client(kBad).Get(Context(), "m", {}).status());
    TC_ASSERT_OK(DropReplicas(kGood, artifact_));
    TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 2));
  }

  // Each once, though it be overtaken and used again.
  std::set<std::string> SourcesOf(const client::Replica& replica) {
    std::set<std::string> sources;
    for (const StageReport& stage : replica.transfer()->stages) {
      if (stage.stage == Stage::kFetch) sources.insert(stage.source.name);
    }
    return sources;
  }

  // A byte of every chunk in its memory: which of them it is asked for depends on how fast both sources are.
  void DamageTheBadSource() {
    std::ifstream file(model_, std::ios::binary);
    for (uint64_t at = kMinChunkBytes / 2; at < kModelBytes; at += kMinChunkBytes) {
      file.seekg(static_cast<std::streamoff>(at));
      std::string needle(kNeedleBytes, '\0');
      file.read(needle.data(), kNeedleBytes);
      std::string damaged = needle;
      damaged[0] ^= 1;
      const auto places = OverwriteSharedMemory(cluster_->daemon(kBad).pid(), needle, damaged);
      if (absl::IsPermissionDenied(places.status())) {
        GTEST_SKIP() << places.status() << ": this test needs root";
      }
      TC_ASSERT_OK(places.status());
      ASSERT_GE(*places, 1);
    }
  }

  // Until the bad source's node has found the damage, and has another replica.
  absl::Status AwaitReplaced() {
    return invariants_->Await(kBad, Soon(), [&](const v1::GetStatusResponse& status) -> absl::Status {
      if (status.damaged_replicas_size() == 1 && !status.damaged_replicas(0).replaced_by().empty()) {
        return absl::OkStatus();
      }
      return absl::InternalError("no damaged replica is replaced");
    });
  }

  static std::string ReadAll(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // The receiver gets the right bytes although the bad source was asked.
  void ExpectTheOtherSourceIsUsed() {
    {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(kReceiver).Get(Context(), "m", {.lane = "tcp"}));
      TC_ASSERT_OK(Compare(*replica, model_).status());
      EXPECT_GE(replica->transfer()->refetched_chunks, 1);
      EXPECT_THAT(SourcesOf(*replica),
                  testing::UnorderedElementsAre(HasSubstr("node-0"), HasSubstr("node-1")));
    }
    TC_ASSERT_OK(DropReplicas(kReceiver, artifact_));
  }

  std::string rules_;
  std::string model_;
  std::string artifact_;
};

TEST_F(WrongBytes, DamagedMemoryOfSource_OtherSourceIsUsedAndCopyReplaced) {
  ASSERT_NO_FATAL_FAILURE(DamageTheBadSource());
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(ExpectTheOtherSourceIsUsed());
  // The holder digests it again, finds the damage, drops it, and takes another one from the good source.
  TC_ASSERT_OK(AwaitReplaced());
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(kReceiver).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*again, model_).status());
  EXPECT_EQ(again->transfer()->refetched_chunks, 0);
}

// Its own processes are told; what they get from then on is right.
TEST_F(WrongBytes, DamagedReplica_ItsHoldersAreToldAndGetAnother) {
  TC_ASSERT_OK_AND_ASSIGN(const auto attached, client(kBad).Get(Context(), "m", {}));
  TC_ASSERT_OK(attached->Check());
  ASSERT_NO_FATAL_FAILURE(DamageTheBadSource());
  if (IsSkipped()) return;
  EXPECT_EQ(attached->Verify().code(), absl::StatusCode::kDataLoss);
  const std::string out = directory_->path() + "/out.safetensors";
  const std::vector<std::string> get_out = {"get", "m",        "--out",
                                            out,   "--daemon", cluster_->addresses(kBad).unix_socket};
  // Before any other node has found it: no wrong bytes at least.
  EXPECT_NE(RunCommand(get_out).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(out));
  ASSERT_NO_FATAL_FAILURE(ExpectTheOtherSourceIsUsed());
  TC_ASSERT_OK(AwaitReplaced());

  const absl::Status told = attached->Check();
  EXPECT_EQ(told.code(), absl::StatusCode::kDataLoss) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr(attached->replica_id()));
  EXPECT_FALSE(attached->lost());
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(kBad));
  TC_ASSERT_OK_AND_ASSIGN(const v1::GetStatusResponse status, admin->GetStatus(Context()));
  ASSERT_EQ(status.damaged_replicas_size(), 1);
  const v1::DamagedReplica& damaged = status.damaged_replicas(0);
  EXPECT_EQ(damaged.replica_id(), attached->replica_id());
  EXPECT_THAT(damaged.memory(), HasSubstr("host pool, segment 0, "));
  EXPECT_EQ(damaged.ended_leases(), 1u);
  const CommandResult shown = RunCommand({"status", "--daemon", cluster_->addresses(kBad).unix_socket});
  EXPECT_THAT(shown.output, AllOf(HasSubstr("DAMAGED"), HasSubstr(damaged.replica_id()),
                                  HasSubstr("host pool, segment 0"), HasSubstr(damaged.replaced_by())));

  EXPECT_EQ(RunCommand(get_out).exit_code, 0);
  EXPECT_EQ(ReadAll(out).size(), ReadAll(model_).size());
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(kBad).Get(Context(), "m", {}));
  EXPECT_EQ(again->replica_id(), damaged.replaced_by());
  TC_ASSERT_OK(again->Check());
  TC_ASSERT_OK(again->Verify());
  TC_ASSERT_OK(Compare(*again, model_).status());
}

TEST_F(WrongBytes, WrongBytesOnTheWire_OtherSourceIsUsedAndReplicaStays) {
  // Past TCP's checksum, as bad memory in a switch or a card would do it. Only the data plane sends this much
  // at once.
  std::ofstream(rules_) << "send flip 100000 socket:\n";
  ASSERT_NO_FATAL_FAILURE(ExpectTheOtherSourceIsUsed());
  // The holder digests its replica again and finds it right, so that stays, and may be asked again.
  TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 2));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(kReceiver).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*again, model_).status());
}

TEST_F(WrongBytes, WrongBytesOfOnlySource_GetFailsAndNamesIt) {
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(kGood));
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin->ListReplicas(Context(), artifact_));
  for (const v1::Replica& replica : replicas) {
    TC_ASSERT_OK(admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true));
  }
  TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 1));
  std::filesystem::rename(model_, model_ + ".moved");  // no origin to fall back to
  std::ofstream(rules_) << "send flip 100000 socket:\n";
  const auto got = client(kReceiver).Get(Context(), "m", {.lane = "tcp"});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss) << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("node-0"));
  TC_ASSERT_OK_AND_ASSIGN(const auto receiver, Admin(kReceiver));
  TC_ASSERT_OK_AND_ASSIGN(const auto held, receiver->ListReplicas(Context(), ""));
  for (const v1::Replica& replica : held) {
    EXPECT_EQ(replica.state(), v1::REPLICA_STATE_PARTIAL) << "a replica was made of wrong bytes";
  }
}

}  // namespace
}  // namespace tensorcast
