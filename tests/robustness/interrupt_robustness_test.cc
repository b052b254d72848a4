// Ctrl-C, SIGTERM and SIGKILL while a command is in the middle of something: it ends at once with 130, and
// neither files nor processes of it are left.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kInterrupted = 130;
constexpr uint64_t kModelBytes = uint64_t{80} << 20;  // more than one system call writes

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Interrupt : public RobustnessTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RobustnessTest::SetUp());
    out_ = directory_->path() + "/out";
    std::filesystem::create_directory(out_);
  }

  // A cluster of one node with a model under the key "m"; daemons see the faults too.
  void StartNode() {
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    options.daemon_environments = {Faults()};
    StartRobustCluster(options);
    model_ = MakeModel("model.safetensors", kModelBytes);
  }
  void StartNodeWithModel() {
    ASSERT_NO_FATAL_FAILURE(StartNode());
    TC_ASSERT_OK(Import(0, "m", model_).status());
  }

  Environment Faults() const {
    return {{"LD_PRELOAD", TENSORCAST_FAULTY_FILES}, {"FAULTY_FILES", rules()}, {"TMPDIR", out_}};
  }
  std::string rules() const { return directory_->path() + "/rules"; }

  // What is written to the file that the command makes stops after the first bytes of it.
  void HoldWrites() { std::ofstream(rules()) << "write hold 1 " << out_ << "/\n"; }
  // In its middle, when its header has long been read and the ingest runs.
  void HoldReadsOfTheModel() {
    std::ofstream(rules()) << "read hold " << kModelBytes / 2 << " " << model_ << "\n";
  }
  void Release() { std::filesystem::remove(rules()); }

  void StartCommand(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), DefaultOptions().binary);
    TC_ASSERT_OK_AND_ASSIGN(command_, Process::Start({.argv = std::move(arguments),
                                                      .environment = Faults(),
                                                      .log_path = directory_->path() + "/command"}));
  }
  void StartOnNode(std::vector<std::string> arguments) {
    arguments.push_back("--daemon");
    arguments.push_back(cluster_->addresses(0).unix_socket);
    StartCommand(std::move(arguments));
  }
  std::string Output() const { return ReadFile(directory_->path() + "/command"); }

  template <class Condition>
  void AwaitOfCommand(const char* what, Condition condition) {
    const SteadyTime deadline = Soon();
    while (!condition()) {
      ASSERT_TRUE(command_->running()) << "it ended before " << what << ": " << Output();
      ASSERT_LT(SteadyNow(), deadline) << what << ": " << Output();
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void AwaitHeld() {
    AwaitOfCommand("it was held", [&] { return std::filesystem::exists(rules() + ".held"); });
  }
  void AwaitOutput(const std::string& text) {
    AwaitOfCommand(text.c_str(), [&] { return Output().find(text) != std::string::npos; });
  }
  void AwaitFilesInOut() {
    AwaitOfCommand("it had files", [&] { return !std::filesystem::is_empty(out_); });
  }

  int ExitCode() { return command_->Wait(Soon()).value_or(-1); }

  std::vector<std::string> LeftInOut() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out_)) {
      names.push_back(entry.path());
    }
    return names;
  }

  std::string out_, model_;
  std::unique_ptr<Process> command_;
};

class InterruptBySignal : public Interrupt, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, InterruptBySignal, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) { return info.param == SIGINT ? "CtrlC" : "Sigterm"; });

TEST_P(InterruptBySignal, FirstSignalDuringGetToFile_EndsItAndRemovesFile) {
  StartNodeWithModel();
  HoldWrites();
  StartOnNode({"get", "m", "--out", out_ + "/m.safetensors"});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  TC_ASSERT_OK(command_->Signal(GetParam()));
  Release();
  EXPECT_EQ(ExitCode(), kInterrupted);
  EXPECT_THAT(Output(), HasSubstr("CANCELLED"));
  EXPECT_THAT(LeftInOut(), IsEmpty());
}

TEST_P(InterruptBySignal, SecondSignalDuringHeldWrite_EndsGetAtOnceAndLeavesNothing) {
  StartNodeWithModel();
  HoldWrites();
  StartOnNode({"get", "m", "--out", out_ + "/m.safetensors"});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  TC_ASSERT_OK(command_->Signal(GetParam()));
  // Two of a kind that are pending at once are one.
  ASSERT_NO_FATAL_FAILURE(AwaitOfCommand("it took the first", [&] {
    return ReadFile(absl::StrCat("/proc/", command_->pid(), "/status")).find("ShdPnd:\t0000000000000000") !=
           std::string::npos;
  }));
  TC_ASSERT_OK(command_->Signal(GetParam()));
  EXPECT_EQ(ExitCode(), kInterrupted);
  EXPECT_THAT(LeftInOut(), IsEmpty());
}

TEST_F(Interrupt, GetKilledWhileWriting_LeavesNothingAndNextGetSucceeds) {
  StartNodeWithModel();
  HoldWrites();
  const std::string out = out_ + "/m.safetensors";
  StartOnNode({"get", "m", "--out", out});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  TC_ASSERT_OK(command_->Signal(SIGKILL));
  EXPECT_EQ(ExitCode(), 128 + SIGKILL);
  EXPECT_THAT(LeftInOut(), IsEmpty());
  Release();
  StartOnNode({"get", "m", "--out", out});
  ASSERT_EQ(ExitCode(), 0) << Output();
  EXPECT_THAT(LeftInOut(), ::testing::ElementsAre(out));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, out).status());
}

TEST_P(InterruptBySignal, SignalDuringMakeModel_EndsItAndRemovesFile) {
  HoldWrites();
  StartCommand({"make-model", out_ + "/m.safetensors", "--size", "80MiB"});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  TC_ASSERT_OK(command_->Signal(GetParam()));
  Release();
  EXPECT_EQ(ExitCode(), kInterrupted);
  EXPECT_THAT(Output(), HasSubstr("CANCELLED"));
  EXPECT_THAT(LeftInOut(), IsEmpty());
}

TEST_P(InterruptBySignal, SignalDuringPut_EndsItAndDaemonKeepsNoReplica) {
  StartNode();
  HoldReadsOfTheModel();
  StartOnNode({"put", model_, "--key", "m"});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  TC_ASSERT_OK(command_->Signal(GetParam()));
  EXPECT_EQ(ExitCode(), kInterrupted);
  Release();
  // A daemon that went on would have a replica, and then publish it.
  TC_ASSERT_OK(AwaitNoIngests(0));
  TC_ASSERT_OK(invariants().Await(0, Soon(), [](const v1::GetStatusResponse& status) -> absl::Status {
    if (status.replicas() == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(status.replicas(), " replicas of a put that was cancelled"));
  }));
  TC_ASSERT_OK_AND_ASSIGN(const auto keys, client(0).ListKeys(Context(), ""));
  EXPECT_TRUE(keys.empty());
}

TEST_P(InterruptBySignal, Signal_EndsKeyWatch) {
  StartNodeWithModel();
  StartOnNode({"key", "watch", "m"});
  ASSERT_NO_FATAL_FAILURE(AwaitOutput("revision 1"));
  TC_ASSERT_OK(command_->Signal(GetParam()));
  EXPECT_EQ(ExitCode(), kInterrupted);
}

TEST_P(InterruptBySignal, Signal_EndsTop) {
  StartNode();
  StartOnNode({"top", "--interval", "1h"});
  ASSERT_NO_FATAL_FAILURE(AwaitOutput("node-0"));
  TC_ASSERT_OK(command_->Signal(GetParam()));
  EXPECT_EQ(ExitCode(), kInterrupted);
}

TEST_P(InterruptBySignal, SignalDuringBenchmark_EndsItAndRemovesFiles) {
  StartCommand({"bench", "memory", "--bytes", "16MiB", "--runs", "1000000"});
  ASSERT_NO_FATAL_FAILURE(AwaitOutput("transfers"));
  TC_ASSERT_OK(command_->Signal(GetParam()));
  EXPECT_EQ(ExitCode(), kInterrupted);
  EXPECT_THAT(LeftInOut(), IsEmpty());
}

// Before it has done anything, while it starts, and when it serves. The first may come before the program's
// own first instruction: then the kernel ends the process, which has made nothing yet.
TEST_F(Interrupt, SignalWhileDaemonStarts_EndsItCleanly) {
  const std::string state = directory_->path() + "/node", log = directory_->path() + "/daemon.log";
  const auto exists = [](const std::string& path) {
    return [path] { return std::filesystem::exists(path); };
  };
  const std::vector<std::function<bool()>> moments = {
      [] { return true; },
      exists(log),
      exists(state),
      exists(state + "/node_id"),
      exists(state + "/daemon.sock"),
      [&] { return FileTail(log, 100).find("serving: ") != std::string::npos; }};
  for (const int signal : {SIGINT, SIGTERM}) {
    for (size_t moment = 0; moment < moments.size(); ++moment) {
      SCOPED_TRACE(absl::StrCat("signal ", signal, " at moment ", moment));
      std::filesystem::remove_all(state);
      std::filesystem::remove(log);
      TC_ASSERT_OK_AND_ASSIGN(
          const auto daemon,
          Process::Start({.argv = {DefaultOptions().binary, "daemon", "--set", "daemon.state_dir=" + state,
                                   "--set", "daemon.host_pool=192MiB", "--set",
                                   "daemon.global_store=unix:" + directory_->path() + "/nowhere.sock"},
                          .log_path = log}));
      ASSERT_TRUE(testing::Eventually(moments[moment])) << FileTail(log, 20);
      TC_ASSERT_OK(daemon->Signal(signal));
      TC_ASSERT_OK_AND_ASSIGN(const int code, daemon->Wait(Soon()));
      EXPECT_TRUE(code == 0 || code == 128 + signal) << code << ": " << FileTail(log, 20);
      for (const char* socket : {"daemon.sock", "client.sock", "handles.sock"}) {
        EXPECT_FALSE(std::filesystem::exists(state + "/" + socket)) << socket;
      }
    }
  }
}

TEST_F(Interrupt, TwoSignalsDuringDemo_LeaveNoFiles) {
  HoldWrites();
  StartCommand({"demo", "--size", "80MiB"});
  ASSERT_NO_FATAL_FAILURE(AwaitHeld());
  ASSERT_NO_FATAL_FAILURE(AwaitFilesInOut());
  TC_ASSERT_OK(command_->Signal(SIGINT));
  TC_ASSERT_OK(command_->Signal(SIGTERM));
  EXPECT_EQ(ExitCode(), kInterrupted);
  EXPECT_THAT(LeftInOut(), IsEmpty());
}

}  // namespace
}  // namespace tensorcast
