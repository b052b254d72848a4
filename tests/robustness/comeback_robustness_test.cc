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
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/testing/eventually.h"
#include "daemon/keeper/keeper.h"
#include "tests/e2e/helper_processes.h"
#include "tests/e2e/process_memory.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

class Comeback : public RobustnessTest {
 protected:
  void StartKept(int host_pool_mib = 192) {
    ClusterOptions options = FastOptions();
    options.daemons = 1;
    options.daemon_settings.push_back("daemon.keep_pool=keeper");
    options.daemon_settings.push_back("daemon.keep_pool_for=60s");
    options.daemon_settings.push_back(absl::StrCat("daemon.host_pool=", host_pool_mib, "MiB"));
    StartRobustCluster(options);
  }
  void TearDown() override {
    const std::string folder = cluster_ == nullptr ? "" : cluster_->daemon_directory(0);
    RobustnessTest::TearDown();
    cluster_.reset();
    if (!folder.empty()) KillKeeper(folder);
  }
  static void KillKeeper(const std::string& folder) {
    for (const pid_t keeper : KeepersOf(folder)) kill(keeper, SIGKILL);
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
  void Return() {
    TC_ASSERT_OK(cluster_->RestartDaemon(0));
    Reconnect(0);
  }
  absl::Status AwaitKept(const std::function<bool(const v1::KeptPool&)>& condition) {
    return invariants().Await(0, Soon(), [&](const v1::GetStatusResponse& status) {
      return condition(status.kept_pool()) ? absl::OkStatus()
                                           : absl::UnavailableError(status.kept_pool().ShortDebugString());
    });
  }
  // Gets it while the file that it came from is not there, and so is no source.
  void ExpectHere(const std::string& key, const std::string& model) {
    std::filesystem::rename(model, model + ".aside");
    auto replica = client(0).Get(Context(), key, {});
    std::filesystem::rename(model + ".aside", model);
    TC_ASSERT_OK(replica.status());
    TC_ASSERT_OK(Compare(**replica, model).status());
  }
};

TEST_F(Comeback, WhatWasReadyIsThereAgainHoweverTheDaemonEnded) {
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

TEST_F(Comeback, WhatWasDroppedIsNotThereAgain) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  Kill(SIGTERM);
  Return();
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 0));
}

TEST_F(Comeback, WithItsKeeperKilledTooTheDaemonStartsEmpty) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  Kill();
  KillKeeper(cluster_->daemon_directory(0));
  Return();
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 0));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*again, model).status());
}

TEST_F(Comeback, AKeeperThatIsKilledIsReplacedAndToldEverything) {
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

TEST_F(Comeback, ABitThatFlippedIsFoundAndTheReplicaIsNotServed) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  std::ifstream file(model, std::ios::binary);
  std::string bytes(64, '\0');
  file.seekg(10 << 20);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::string changed = bytes;
  changed[0] ^= 1;
  TC_ASSERT_OK_AND_ASSIGN(const int places, OverwriteSharedMemory(cluster_->daemon(0).pid(), bytes, changed));
  ASSERT_GT(places, 0);
  Kill();
  Return();
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*again, model).status());
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 100), HasSubstr("does not match its digests"));
}

TEST_F(Comeback, AClientThatWasAttachedGoesOnReadingWhatItHadThoughThePoolFillsWithOthers) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto attached, client(0).Get(Context(), "m", {}));
  Kill();
  Return();
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(0).Get(Context(), "m", {}));
  for (int i = 0; i < 12; ++i) {
    const std::string other = MakeModel(absl::StrCat("other", i), 20 << 20, 1, /*seed=*/100 + i);
    TC_ASSERT_OK(Import(0, absl::StrCat("other", i), other).status());
  }
  TC_ASSERT_OK(Compare(*attached, model).status());
  TC_ASSERT_OK(Compare(*again, model).status());
}

bool HoldsSegments(const v1::KeptPool& kept) { return kept.read_only_bytes() > 0; }

TEST_F(Comeback, WhatAProcessIsAttachedToStaysUntilItIsGone) {
  StartKept();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK_AND_ASSIGN(
      const auto holder,
      Process::Start({.argv = {TENSORCAST_LEASE_HOLDER, cluster_->addresses(0).unix_socket, "m", "cpu"},
                      .log_path = absl::StrCat(directory_->path(), "/holder.log"),
                      .ready_pipe = true}));
  TC_ASSERT_OK(holder->WaitReady(Soon()).status());
  TC_ASSERT_OK(holder->Signal(SIGSTOP));  // it cannot come back
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

TEST_F(Comeback, AClientTakesItsLeaseAgainByItself) {
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
TEST_F(Comeback, WhatIsNoTableOrNoSegmentIsLetGo) {
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
TEST_F(Comeback, UnderLoadEveryByteIsRightAfterEachKill) {
  StartKept();
  const char* const asked = std::getenv("TENSORCAST_COMEBACKS");
  int rounds = 8;
  if (asked != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(asked, &rounds));
  }
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
