// Daemons that are killed and come back with the replicas that they had in host memory, kept by a keeper.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/testing/eventually.h"
#include "client/live.h"
#include "daemon/keeper/keeper.h"
#include "tests/e2e/helper_processes.h"
#include "tests/e2e/process_memory.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kPoolMib = 192;

uint64_t HostPoolUsed(const v1::GetStatusResponse& status) {
  for (const v1::Pool& pool : status.pools()) {
    if (pool.location().kind() == v1::LOCATION_KIND_CPU) return pool.used_bytes();
  }
  return 0;
}

class Comeback : public RobustnessTest {
 protected:
  ClusterOptions KeptOptions() const {
    ClusterOptions options = FastOptions();
    options.daemons = 1;
    options.daemon_settings.push_back("daemon.keep_pool=keeper");
    options.daemon_settings.push_back("daemon.keep_pool_for=60s");
    options.daemon_settings.push_back(HostPool(kPoolMib));
    return options;
  }
  static std::string HostPool(uint64_t mib) { return absl::StrCat("daemon.host_pool=", mib, "MiB"); }
  void StartKept() { StartRobustCluster(KeptOptions()); }
  void TearDown() override {
    const std::string folder = cluster_ == nullptr ? "" : cluster_->daemon_directory(0);
    RobustnessTest::TearDown();
    cluster_.reset();
    if (!folder.empty()) KillKeeper(folder);
  }
  static void KillKeeper(const std::string& folder, int signal_number = SIGKILL) {
    for (const pid_t keeper : KeepersOf(folder)) kill(keeper, signal_number);
  }
  // That a process has open; 0 when it is gone.
  static size_t Descriptors(pid_t pid) {
    std::error_code error;
    const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid, "/fd"), error);
    return error ? 0 : static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  void Kill(int signal_number = SIGKILL) {
    TC_ASSERT_OK(cluster_->daemon(0).Signal(signal_number));
    TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
  }
  void Return(const std::vector<std::string>& settings = {}) {
    TC_ASSERT_OK(cluster_->RestartDaemon(0, settings));
    Reconnect(0);
  }
  // A process that is attached to it in host memory, and cannot come back.
  std::unique_ptr<Process> StartHolder(const std::string& key) {
    auto holder =
        Process::Start({.argv = {TENSORCAST_LEASE_HOLDER, cluster_->addresses(0).unix_socket, key, "cpu"},
                        .log_path = absl::StrCat(directory_->path(), "/holder.log"),
                        .ready_pipe = true});
    EXPECT_TRUE(holder.ok()) << holder.status();
    EXPECT_TRUE((*holder)->WaitReady(Soon()).ok());
    EXPECT_TRUE((*holder)->Signal(SIGSTOP).ok());
    return *std::move(holder);
  }
  // What the first daemon, its keeper, this process and one more have of host pools. The keeper hears a
  // moment later what has gone.
  void ExpectPoolsWithin(uint64_t mib, pid_t another) {
    uint64_t bytes = 0;
    EXPECT_TRUE(testing::Eventually([&] {
      std::vector<pid_t> processes = KeepersOf(cluster_->daemon_directory(0));
      processes.insert(processes.end(), {cluster_->daemon(0).pid(), getpid(), another});
      bytes = HostPoolMemory(processes);
      return bytes <= mib << 20;
    })) << bytes
        << " bytes";
  }
  void FillThePool(uint64_t model_mib = 20) {
    for (int i = 0; i < 12; ++i) {
      const std::string other = MakeModel(absl::StrCat("other", i), model_mib << 20, 1, /*seed=*/100 + i);
      TC_ASSERT_OK(client(0).Import(Context(), other, {.key = absl::StrCat("other", i)}).status());
    }
  }
  // In the daemon's own memory, and so in what is kept of it.
  void FlipABitOf(const std::string& model) {
    std::ifstream file(model, std::ios::binary);
    std::string bytes(64, '\0');
    file.seekg(10 << 20);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::string changed = bytes;
    changed[0] ^= 1;
    TC_ASSERT_OK_AND_ASSIGN(const int places,
                            OverwriteSharedMemory(cluster_->daemon(0).pid(), bytes, changed));
    ASSERT_GT(places, 0);
  }
  absl::Status AwaitKept(const std::function<bool(const v1::KeptPool&)>& condition) {
    return invariants().Await(0, Soon(), [&](const v1::GetStatusResponse& status) {
      return condition(status.kept_pool()) ? absl::OkStatus()
                                           : absl::UnavailableError(status.kept_pool().ShortDebugString());
    });
  }
  // Gets it while the file that it came from is not there, and so is not a source.
  void ExpectHere(const std::string& key, const std::string& model) {
    std::filesystem::rename(model, model + ".aside");
    auto replica = client(0).Get(Context(), key, {});
    std::filesystem::rename(model + ".aside", model);
    TC_ASSERT_OK(replica.status());
    TC_ASSERT_OK(Compare(**replica, model).status());
  }
};

TEST_F(Comeback, DaemonRestart_ReadyReplicaIsThereAgain) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  for (const int ended_by : {SIGKILL, SIGTERM, SIGKILL}) {
    SCOPED_TRACE(strsignal(ended_by));
    Kill(ended_by);
    Return();
    ExpectHere("m", model);
  }
}

TEST_F(Comeback, DaemonRestart_DroppedReplicaStaysGone) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  Kill(SIGTERM);
  Return();
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 0));
}

TEST_F(Comeback, DaemonAndKeeperKilled_DaemonStartsEmpty) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  const std::string folder = cluster_->daemon_directory(0);
  for (const int signal_number : {SIGKILL, SIGTERM}) {
    SCOPED_TRACE(strsignal(signal_number));
    Kill();
    KillKeeper(folder, signal_number);
    ASSERT_TRUE(testing::Eventually([&] { return KeepersOf(folder).empty(); }));
    Return();
    TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 0));
    TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
    TC_ASSERT_OK(Compare(*again, model).status());
  }
}

TEST_F(Comeback, KilledKeeper_IsReplacedAndHoldsAllSegments) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  const std::string folder = cluster_->daemon_directory(0);
  const std::vector<pid_t> before = KeepersOf(folder);
  ASSERT_EQ(before.size(), 1u);
  const size_t held = Descriptors(before.front());
  KillKeeper(folder);
  TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
    const std::vector<pid_t> now = KeepersOf(folder);
    return now.size() == 1 && now != before && Descriptors(now.front()) >= held
               ? absl::OkStatus()
               : absl::UnavailableError("no keeper that was told all");
  }));
  Kill();
  Return();
  ExpectHere("m", model);
}

TEST_F(Comeback, BitFlippedInKeptReplica_IsDetectedAndNotServed) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  FlipABitOf(model);
  Kill();
  Return();
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*again, model).status());
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 100), HasSubstr("does not match its digests"));
}

// Slowly, so that the kill comes when some chunks are new and others are old.
TEST_F(Comeback, KilledWhileAdvancing_ServesNoWrongBytesAndFinishesLater) {
  ClusterOptions options = KeptOptions();
  options.daemons = 2;
  // Of two hosts, so that bytes come over TCP, and slowly.
  options.settings_of_daemon = {{"daemon.host_id=host-0", "daemon.limits.receive=10MB"},
                                {"daemon.host_id=host-1", "daemon.keep_pool=off"}};
  StartRobustCluster(options);
  const std::string first = MakeModel("first.safetensors", 20 << 20, 1, /*seed=*/1);
  const std::string second = MakeModel("second.safetensors", 20 << 20, 1, /*seed=*/2);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(1, "m", first));
  TC_ASSERT_OK(client(0).Get(Context(), "m", {.attach = false}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto next, Import(1, "m", second));
  const auto advancing = client(0).StartGet(Context(), "m", {.attach = false, .advance = true});
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  ASSERT_TRUE(testing::Eventually([&] {
    const auto replicas = admin->ListReplicas(Context(), next.artifact_id);
    return replicas.ok() && !replicas->empty() && replicas->front().chunks_present() > 3;
  }));
  Kill();
  Return();
  advancing->Wait(Soon()).status().IgnoreError();  // it fails, or its client has begun it anew
  // The earlier version had no record any more, so the next daemon did not even look for it.
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 1));
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 100),
              Not(HasSubstr("does not match its digests")));
  TC_ASSERT_OK_AND_ASSIGN(const auto earlier, client(0).Get(Context(), put.artifact_id, {}));
  TC_ASSERT_OK(Compare(*earlier, first).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto newest, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*newest, second).status());
}

// A replica that a client holds live, and its client.
struct LiveReplica {
  std::unique_ptr<client::LiveClient> live;
  std::unique_ptr<client::Replica> replica;
  std::string hold;

  absl::Status Commit(const RequestContext& context, const std::string& artifact_id) {
    TC_ASSIGN_OR_RETURN(const auto committed,
                        live->Commit(context, hold, artifact_id, kStepTimeout / 2, *replica));
    client::LiveClient::Adopt(committed, *replica);
    hold = committed.hold;
    return absl::OkStatus();
  }
};

class LiveComeback : public Comeback {
 protected:
  // The first node keeps its pool. The second one has both versions, so that the first may drop either.
  void StartWithTwoVersions(uint64_t mib) {
    ClusterOptions options = KeptOptions();
    options.daemons = 2;
    options.settings_of_daemon = {{HostPool(6 * mib + 64)}, {HostPool(3 * mib + 64), "daemon.keep_pool=off"}};
    StartRobustCluster(options);
    for (const int version : {0, 1}) {
      models_[version] =
          MakeModel(absl::StrCat("v", version, ".safetensors"), mib << 20, 1, /*seed=*/version + 1);
      TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(1, "m", models_[version]));
      ids_[version] = put.artifact_id;
    }
  }
  absl::StatusOr<LiveReplica> HoldLive(const std::string& artifact_id) {
    LiveReplica held;
    TC_ASSIGN_OR_RETURN(held.live, client::LiveClient::Connect({cluster_->addresses(0).unix_socket}));
    TC_ASSIGN_OR_RETURN(held.replica, client(0).Get(Context(), artifact_id, {}));
    TC_ASSIGN_OR_RETURN(held.hold, held.live->MakeLive(Context(), *held.replica));
    return held;
  }
  bool Shows(const client::Replica& replica, int version) { return Compare(replica, models_[version]).ok(); }
  // Kills the daemon once it has begun to write another version to this memory; false: it was given up.
  bool KillOnceWritten(const client::Replica& replica, const std::atomic<bool>& give_up) {
    constexpr uint64_t kStep = 1 << 20;
    std::vector<uint64_t> before;
    const auto word = [&](uint64_t at) {
      return *reinterpret_cast<const volatile uint64_t*>(replica.image().data() + at);
    };
    for (uint64_t at = 0; at + kStep <= replica.image().size(); at += kStep) before.push_back(word(at));
    const pid_t daemon = cluster_->daemon(0).pid();
    while (!give_up) {
      for (size_t i = 0; i < before.size(); ++i) {
        if (word(i * kStep) == before[i]) continue;
        return kill(daemon, SIGKILL) == 0;
      }
    }
    return false;
  }

  std::string models_[2];
  std::string ids_[2];
};

TEST_F(LiveComeback, KilledWhileScattering_ServesNoTornBytes) {
  StartWithTwoVersions(/*mib=*/96);
  bool torn = false;
  // Where this process saw the first value too late, the kill came after the last one.
  for (int round = 0; round < 10 && !torn; ++round) {
    SCOPED_TRACE(round);
    TC_ASSERT_OK_AND_ASSIGN(LiveReplica held, HoldLive(ids_[0]));
    TC_ASSERT_OK(held.live->Prepare(Context(), held.hold, ids_[1]));
    std::atomic<bool> give_up = false;
    std::future<bool> killed =
        std::async(std::launch::async, [&] { return KillOnceWritten(*held.replica, give_up); });
    const absl::Status committed = held.Commit(Context(), ids_[1]);
    give_up = true;
    if (killed.get()) {
      TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
      torn = !Shows(*held.replica, 0) && !Shows(*held.replica, 1);
      Return();
    }
    if (!torn) {
      TC_ASSERT_OK(DropReplicas(0, ids_[1]));
      continue;
    }
    EXPECT_FALSE(committed.ok());
    EXPECT_TRUE(held.replica->lost());
    const absl::Status again = held.Commit(Context(), ids_[1]);
    EXPECT_EQ(again.code(), absl::StatusCode::kNotFound) << again;
    EXPECT_THAT(std::string(again.message()), HasSubstr("get the weights again with live=True"));
    // Neither version has a record any more, so the next daemon takes no bytes for one of them.
    EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 100),
                Not(HasSubstr("does not match its digests")));
    for (const int version : {0, 1}) {
      TC_ASSERT_OK(AwaitReplicas(0, ids_[version], 1));
      TC_ASSERT_OK_AND_ASSIGN(const auto got, client(0).Get(Context(), ids_[version], {}));
      EXPECT_TRUE(Shows(*got, version));
    }
  }
  EXPECT_TRUE(torn) << "no kill came between two values";
  TC_ASSERT_OK_AND_ASSIGN(LiveReplica held, HoldLive(ids_[0]));
  TC_ASSERT_OK(held.Commit(Context(), ids_[1]));
  EXPECT_TRUE(Shows(*held.replica, 1));
}

TEST_F(LiveComeback, RestartAfterCommit_ClientHoldsCommittedVersion) {
  StartWithTwoVersions(/*mib=*/20);
  TC_ASSERT_OK_AND_ASSIGN(LiveReplica held, HoldLive(ids_[0]));
  TC_ASSERT_OK(held.Commit(Context(), ids_[1]));
  Kill();
  EXPECT_TRUE(held.replica->lost());
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  EXPECT_TRUE(testing::Eventually([&] { return !held.replica->lost(); }));
  TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return kept.awaited_holders() == 0; }));
  EXPECT_TRUE(Shows(*held.replica, 1));
  const absl::Status ended = held.live->Prepare(Context(), held.hold, ids_[0]);
  EXPECT_EQ(ended.code(), absl::StatusCode::kNotFound) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("get the weights again with live=True"));
  // What an earlier daemon made is read-only in this one.
  Reconnect(0);
  TC_ASSERT_OK_AND_ASSIGN(const LiveReplica again, HoldLive(ids_[1]));
  const absl::Status refused = again.live->Prepare(Context(), again.hold, ids_[0]);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("evict the replica, and get the weights again with live=True"));
  EXPECT_TRUE(Shows(*again.replica, 1));
}

TEST_F(Comeback, AttachedClient_KeepsItsBytesAfterRestartAndFullPool) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto attached, client(0).Get(Context(), "m", {}));
  Kill();
  Return();
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
  FillThePool();
  TC_ASSERT_OK(Compare(*attached, model).status());
  TC_ASSERT_OK(Compare(*again, model).status());
}

bool HoldsSegments(const v1::KeptPool& kept) { return kept.read_only_bytes() > 0; }

TEST_F(Comeback, SegmentsThatAProcessMaps_StayUntilTheProcessEnds) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  const std::unique_ptr<Process> holder = StartHolder("m");
  for (int i = 0; i < 2; ++i) {
    Kill();
    Return();
    TC_ASSERT_OK(AwaitKept(
        [](const v1::KeptPool& kept) { return kept.waiting() == 0 && kept.awaited_holders() == 1; }));
  }
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  TC_ASSERT_OK(AwaitKept(HoldsSegments));
  TC_ASSERT_OK(holder->Signal(SIGKILL));
  TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return !HoldsSegments(kept); }));
}

TEST_F(Comeback, MappedButUnservedMemory_CountsAgainstThePool) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to write to another process and to see what it maps";
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  const std::unique_ptr<Process> holder = StartHolder("m");
  FlipABitOf(model);
  for (int i = 0; i < 2; ++i) {
    Kill();
    Return();
    TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) {
      return kept.waiting() == 0 && kept.awaited_holders() == 1 && kept.unserved_bytes() > 0;
    }));
    FillThePool();
    ExpectPoolsWithin(kPoolMib, holder->pid());
  }
  TC_ASSERT_OK(holder->Signal(SIGKILL));
  TC_ASSERT_OK(AwaitKept(
      [](const v1::KeptPool& kept) { return kept.awaited_holders() == 0 && kept.unserved_bytes() == 0; }));
  FillThePool();
  ExpectPoolsWithin(kPoolMib, getpid());
}

TEST_F(Comeback, SmallerPool_RefusesToDropKeptReplicasUnlessTold) {
  StartKept();
  // Put from memory, so that no file is an origin of it and each replica is the last copy.
  for (int i = 0; i < 4; ++i) {
    const std::vector<std::byte> bytes(20 << 20, static_cast<std::byte>(i + 1));
    const client::PutTensor tensor{"weight", DType::kU8, {bytes.size()}, bytes};
    TC_ASSERT_OK(client(0).Put(Context(), {&tensor, 1}, {}, {.key = absl::StrCat("m", i)}).status());
  }
  Kill();
  EXPECT_FALSE(cluster_->RestartDaemon(0, {HostPool(64)}).ok());
  std::ostringstream log;
  log << std::ifstream(cluster_->daemon(0).log_path()).rdbuf();
  EXPECT_THAT(log.str(), AllOf(HasSubstr("of 4 kept replicas"), HasSubstr("--discard-kept")));
  Return({HostPool(kPoolMib)});
  TC_ASSERT_OK(
      AwaitKept([](const v1::KeptPool& kept) { return kept.replicas() == 4 && kept.waiting() == 0; }));

  Kill();
  Return({HostPool(64), "--discard-kept"});
  int here = 0;
  for (int i = 0; i < 4; ++i) {
    const auto got = client(0).Get(Context(), absl::StrCat("m", i), {});
    here += got.ok() ? 1 : 0;
    if (got.ok()) continue;
    EXPECT_EQ(got.status().code(), absl::StatusCode::kNotFound) << got.status();
    EXPECT_THAT(got.status().message(), HasSubstr("has a copy")) << got.status();
  }
  EXPECT_LT(here, 4);
}

TEST_F(Comeback, RestartWithOtherPoolSize_KeepsReplicasThatFit) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to see what another process maps";
  StartKept();
  for (int i = 0; i < 4; ++i) {
    const std::string model = MakeModel(absl::StrCat("model", i), 20 << 20, 1, /*seed=*/i + 1);
    TC_ASSERT_OK(Import(0, absl::StrCat("m", i), model).status());
  }
  const std::unique_ptr<Process> holder = StartHolder("m2");
  struct Size {
    uint64_t mib;
    uint32_t replicas;
    bool served;  // what the process maps
  };
  for (const Size& size : {Size{2 * kPoolMib, 4, true}, Size{96, 1, true}, Size{kPoolMib, 1, true},
                           // Its segments are of another size, and room is all that there is for the process.
                           Size{94, 0, false}}) {
    SCOPED_TRACE(size.mib);
    Kill();
    Return({HostPool(size.mib), "--discard-kept"});
    TC_ASSERT_OK(AwaitKept([&](const v1::KeptPool& kept) {
      return kept.waiting() == 0 && kept.mismatched() == 0 && kept.replicas() == size.replicas &&
             kept.awaited_holders() == 1 && (kept.unserved_bytes() == 0) == size.served;
    }));
    if (size.served) ExpectHere("m2", absl::StrCat(directory_->path(), "/model2"));
    ExpectPoolsWithin(size.mib, holder->pid());
  }
  FillThePool(/*model_mib=*/8);
  ExpectPoolsWithin(94, holder->pid());
  TC_ASSERT_OK(holder->Signal(SIGKILL));
  TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return kept.unserved_bytes() == 0; }));
}

TEST_F(Comeback, DaemonKilledDuringIngest_FillingReplicaIsGoneAndFreed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to see what another process maps";
  ClusterOptions options = KeptOptions();
  options.daemons = 2;
  options.settings_of_daemon = {{},
                                {"daemon.keep_pool=off", "daemon.limits.send=4MiB"}};  // a pull takes seconds
  const std::string rules = directory_->path() + "/rules";
  options.daemon_environments = {{{"LD_PRELOAD", TENSORCAST_FAULTY_FILES}, {"FAULTY_FILES", rules}}};
  StartRobustCluster(options);
  const std::string model = MakeModel("model", 20 << 20);
  const std::string local = MakeModel("local", 20 << 20, 1, /*seed=*/2);
  TC_ASSERT_OK(Import(0, "m", model).status());
  TC_ASSERT_OK(Import(1, "remote", MakeModel("remote", 40 << 20, 1, /*seed=*/3)).status());
  uint64_t used = 0;  // with the one replica
  size_t descriptors = 0;
  const auto look = [&] {
    TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) {
      return kept.replicas() == 1 && kept.waiting() == 0 && kept.unserved_bytes() == 0;
    }));
    TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const v1::GetStatusResponse& status) {
      const uint64_t now = HostPoolUsed(status);
      if (used == 0) used = now;
      return now == used ? absl::OkStatus() : absl::InternalError(absl::StrCat(now, " instead of ", used));
    }));
    const std::vector<pid_t> keepers = KeepersOf(cluster_->daemon_directory(0));
    ASSERT_EQ(keepers.size(), 1u);
    if (descriptors == 0) descriptors = Descriptors(keepers.front());
    // The first look may have been a moment too early; what leaks does so in each round.
    EXPECT_TRUE(testing::Eventually([&] { return Descriptors(keepers.front()) <= descriptors + 4; }));
    ExpectPoolsWithin(kPoolMib, getpid());
  };
  Kill();
  Return();
  ASSERT_NO_FATAL_FAILURE(look());
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const bool pulls = round % 2 == 0;
    TC_ASSERT_OK_AND_ASSIGN(auto loader, NewClient(0));
    if (!pulls) std::ofstream(rules) << "read hold 8388608 " << local << "\n";
    RequestContext context = Context();
    const Cancellation give_up = context.cancellation;  // else it waits for the daemon to come back
    std::thread load([&] {
      const absl::Status done = pulls ? loader->Get(context, "remote", {.lane = "tcp"}).status()
                                      : loader->Import(context, local, {.key = "local"}).status();
      EXPECT_FALSE(done.ok());
    });
    EXPECT_TRUE(invariants()
                    .Await(0, Soon(),
                           [&](const v1::GetStatusResponse& status) {
                             const bool middle = pulls ? status.active_transfers() > 0
                                                       : std::filesystem::exists(rules + ".held");
                             return middle && HostPoolUsed(status) > used
                                        ? absl::OkStatus()
                                        : absl::UnavailableError("it did not come to its middle");
                           })
                    .ok());
    Kill();
    give_up.Cancel();
    load.join();
    std::filesystem::remove(rules);
    std::filesystem::remove(rules + ".held");
    Return();
    ASSERT_NO_FATAL_FAILURE(look());
  }
  ExpectHere("m", model);
}

TEST_F(Comeback, KeptReplica_IsCopiedToGpuAfterRestart) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  const client::GetOptions on_gpu{.location = "gpu:0"};
  TC_ASSERT_OK(client(0).Get(Context(), "m", on_gpu).status());
  for (int i = 0; i < 2; ++i) {
    Kill();
    Return();
    TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return kept.gone_on_gpus() == 1; }));
    std::filesystem::rename(model, model + ".aside");  // it is not a source
    auto on_device = client(0).Get(Context(), "m", on_gpu);
    std::filesystem::rename(model + ".aside", model);
    TC_ASSERT_OK(on_device.status());
    TC_ASSERT_OK(Compare(**on_device, model).status());
  }
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 200), Not(HasSubstr("are slower")));
}

TEST_F(Comeback, DaemonRestart_ClientRenewsItsLease) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK_AND_ASSIGN(auto attached, client(0).Get(Context(), "m", {}));
  const std::byte* const where = attached->image().data();
  for (int i = 0; i < 3; ++i) {
    Kill();
    EXPECT_TRUE(attached->lost());
    TC_ASSERT_OK(cluster_->RestartDaemon(0));
    EXPECT_TRUE(testing::Eventually([&] { return !attached->lost(); }));
  }
  TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return kept.awaited_holders() == 0; }));
  EXPECT_EQ(attached->image().data(), where);
  TC_ASSERT_OK(Compare(*attached, model).status());
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  TC_ASSERT_OK(AwaitKept(HoldsSegments));
  attached.reset();
  TC_ASSERT_OK(AwaitKept([](const v1::KeptPool& kept) { return !HoldsSegments(kept); }));
}

UniqueFd FileOf(std::string_view bytes) {
  UniqueFd fd(memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return fd;
}

// What the keeper has is replaced by something else before the daemon comes back.
TEST_F(Comeback, InvalidKeptRecordOrSegment_IsDropped) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  struct Change {
    std::string what;
    std::string prefix;  // of what is replaced
    std::string bytes;
    std::string name;  // under which there is something more; empty: in place of what was there
  };
  const std::string size_of_segment(24 << 20, 'x');
  for (const Change& change :
       {Change{"a record cut short", "replica1/", "TCKR", ""}, Change{"an empty record", "replica1/", "", ""},
        Change{"a segment of another size", "segment1/", "small", ""},
        Change{"a segment that is not sealed", "segment1/", size_of_segment, ""},
        Change{"something of another version", "replica1/", "new", "replica2/x"}}) {
    SCOPED_TRACE(change.what);
    Kill();
    {
      daemon::KeeperClient keeper(cluster_->daemon_directory(0) + "/keeper.sock", {"never started"});
      TC_ASSERT_OK_AND_ASSIGN(const auto kept, keeper.Open());
      int changed = 0;
      for (const daemon::KeptDescriptor& one : kept) {
        if (!one.name.starts_with(change.prefix)) continue;
        keeper.Put(change.name.empty() ? one.name : change.name, FileOf(change.bytes));
        ++changed;
      }
      EXPECT_GT(changed, 0);
    }
    Return();
    TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
    TC_ASSERT_OK(Compare(*again, model).status());
  }
}

// TENSORCAST_COMEBACKS: how often; more by hand.
int Rounds(int otherwise) {
  const char* const asked = std::getenv("TENSORCAST_COMEBACKS");
  int rounds = otherwise;
  if (asked != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(asked, &rounds));
  }
  return rounds;
}

// Records come and go all the time, and the moment of the kill is any.
TEST_F(Comeback, KillsOfDaemonAndKeeperUnderLoad_ServedBytesMatch) {
  StartKept();
  std::vector<std::string> models;
  std::vector<std::string> artifacts;
  for (int i = 0; i < 8; ++i) {
    models.push_back(MakeModel(absl::StrCat("model", i), 3 << 20, 1, /*seed=*/i + 1));
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, absl::StrCat("m", i), models.back()));
    artifacts.push_back(put.artifact_id);
  }
  std::minstd_rand random(1);
  const int rounds = Rounds(6);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    TC_ASSERT_OK_AND_ASSIGN(auto loader, NewClient(0));
    std::atomic<bool> stop{false};
    std::thread load([&] {
      for (size_t i = round; !stop; ++i) {
        const size_t which = i % models.size();
        loader->Import(Context(), models[which], {.key = absl::StrCat("m", which)}).IgnoreError();
        if (!stop) DropReplicas(0, artifacts[(i + 3) % artifacts.size()]).IgnoreError();
      }
    });
    // After so many of the daemon's answers.
    for (unsigned i = random() % 60; i > 0; --i) {
      EXPECT_TRUE(
          invariants().Await(0, Soon(), [](const v1::GetStatusResponse&) { return absl::OkStatus(); }).ok());
    }
    const unsigned keeper = random() % 4;
    if (keeper == 0) KillKeeper(cluster_->daemon_directory(0));
    stop = true;
    Kill();
    if (keeper == 1) KillKeeper(cluster_->daemon_directory(0));
    Return();
    load.join();
    TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  }
}

TEST_F(Comeback, DaemonKillsUnderLoad_AttachedAndNewReplicasMatch) {
  StartKept();
  const int rounds = Rounds(8);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  std::vector<std::string> others;
  for (int i = 0; i < 6; ++i) others.push_back(MakeModel(absl::StrCat("o", i), 12 << 20, 1, /*seed=*/10 + i));
  std::vector<std::unique_ptr<client::Replica>> attached;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    TC_ASSERT_OK_AND_ASSIGN(auto loader, NewClient(0));
    TC_ASSERT_OK_AND_ASSIGN(auto replica, client(0).Get(Context(), "m", {}));
    attached.push_back(std::move(replica));
    // Of every round's daemon at most: the memory of those before is freed with them.
    if (attached.size() > 3) attached.erase(attached.begin());
    absl::Mutex mutex;
    int done = 0;  // guarded by mutex
    std::atomic<bool> stop{false};
    std::thread load([&] {
      for (int i = 0; !stop; ++i) {
        const int which = (round + i) % static_cast<int>(others.size());
        const std::string key = absl::StrCat("o", which);
        const bool imported = loader->Import(Context(), others[which], {.key = key}).ok();
        absl::MutexLock lock(&mutex);
        done += imported ? 1 : 0;
      }
    });
    {
      absl::MutexLock lock(&mutex);
      const auto enough = [&] { return done > round % 4; };
      EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&enough), kStepTimeout));
    }
    stop = true;
    Kill();
    Return();
    load.join();
    for (const auto& one : attached) TC_ASSERT_OK(Compare(*one, model).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
    TC_ASSERT_OK(Compare(*again, model).status());
  }
}

}  // namespace
}  // namespace tensorcast
