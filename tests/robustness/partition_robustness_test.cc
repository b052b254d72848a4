// Partitions between hosts: each daemon in a network namespace of its own with a host id of its own, on a
// bridge in the global store's namespace; a cut is a link set down. The machine's own network is not touched:
// clients use unix sockets.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

constexpr int kNodes = 2;

// Names of namespaces carry the process id: two runs on one machine do not meet.
class Network {
 public:
  // What is in a namespace goes with it.
  ~Network() {
    for (int node = 0; node < kNodes; ++node) Ip({"netns", "del", Namespace(node)});
    Ip({"netns", "del", Hub()});
  }

  bool SetUp() {
    if (geteuid() != 0 || !Ip({"netns", "add", Hub()}) ||
        !InHub({"link", "add", "bridge0", "type", "bridge"}) ||
        !InHub({"addr", "add", Address(0) + "/24", "dev", "bridge0"}) ||
        !InHub({"link", "set", "bridge0", "up"}) || !InHub({"link", "set", "lo", "up"})) {
      return false;
    }
    for (int node = 0; node < kNodes; ++node) {
      if (!AddNode(node)) return false;
    }
    return true;
  }

  bool Cut(int node) { return InHub({"link", "set", Link(node), "down"}); }
  bool Heal(int node) { return InHub({"link", "set", Link(node), "up"}); }

  static std::string Hub() { return absl::StrCat("tcrob", getpid(), "-hub"); }
  static std::string Namespace(int node) { return absl::StrCat("tcrob", getpid(), "-", node); }
  // Of the bridge: 0; of the nodes: from 1. From the range for benchmarks, which no real network uses.
  static std::string Address(int host) { return absl::StrCat("198.18.77.", host + 1); }

 private:
  static std::string Link(int node) { return absl::StrCat("node", node); }

  static bool InHub(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"-n", Hub()});
    return Ip(std::move(arguments));
  }

  static bool Ip(std::vector<std::string> arguments) {
    for (const char* program : {"/usr/sbin/ip", "/sbin/ip"}) {
      if (access(program, X_OK) != 0) continue;
      arguments.insert(arguments.begin(), program);
      return RunTool(arguments);
    }
    return false;
  }

  bool AddNode(int node) {
    const std::string space = Namespace(node);
    return Ip({"netns", "add", space}) &&
           InHub({"link", "add", Link(node), "type", "veth", "peer", "name", "eth0", "netns", space}) &&
           InHub({"link", "set", Link(node), "master", "bridge0"}) &&
           InHub({"link", "set", Link(node), "up"}) &&
           Ip({"-n", space, "addr", "add", Address(node + 1) + "/24", "dev", "eth0"}) &&
           Ip({"-n", space, "link", "set", "eth0", "up"}) && Ip({"-n", space, "link", "set", "lo", "up"});
  }
};

class Partition : public RobustnessTest {
 protected:
  void StartOnNetwork() {
    if (!network_.SetUp()) {
      GTEST_SKIP() << "network namespaces cannot be made here: this test needs root, `ip` and veth";
    }
    ClusterOptions options = FastOptions();
    options.daemons = kNodes;
    options.global_store_network_namespace = Network::Hub();
    options.global_store_settings.push_back(absl::StrCat("global_store.listen=", Network::Address(0), ":0"));
    for (int node = 0; node < kNodes; ++node) {
      const std::string address = Network::Address(node + 1);
      options.settings_of_daemon.push_back({absl::StrCat("daemon.listen=", address, ":0"),
                                            absl::StrCat("daemon.ucx_listen=", address, ":0"),
                                            absl::StrCat("daemon.host_id=host-", node)});
      options.network_namespaces.push_back(Network::Namespace(node));
    }
    StartRobustCluster(options);
  }

  // Waits until the global store has given node 0 up: it offers no replica of the artifact any more.
  absl::Status AwaitGivenUp(const std::string& artifact_id) { return AwaitReplicas(1, artifact_id, 0); }

  // A cut lasts until everything that follows from it was seen; by hand it can be made to last as real ones
  // do (TENSORCAST_CUT_FOR=60s).
  static absl::Duration CutFor() {
    const char* text = std::getenv("TENSORCAST_CUT_FOR");
    absl::Duration duration = absl::ZeroDuration();
    if (text != nullptr) {
      EXPECT_TRUE(absl::ParseDuration(text, &duration)) << text;
    }
    return duration;
  }

  Network network_;
};

TEST_F(Partition, ACutNodeServesItsOwnIsGivenUpByTheOthersAndComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(StartOnNetwork());
  if (IsSkipped()) return;
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));

  ASSERT_TRUE(network_.Cut(0));
  TC_ASSERT_OK(AwaitGivenUp(put.artifact_id));
  TC_ASSERT_OK_AND_ASSIGN(auto own, client(0).Get(Context(), put.artifact_id, {}));
  TC_ASSERT_OK(Compare(*own, model).status());
  own.reset();
  const auto other = client(1).Get(Context(absl::Seconds(10)), "m", {});
  EXPECT_FALSE(other.ok());
  EXPECT_NE(other.status().code(), absl::StatusCode::kDeadlineExceeded) << other.status();

  absl::SleepFor(CutFor());
  ASSERT_TRUE(network_.Heal(0));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(AwaitReplicas(1, put.artifact_id, 1));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Partition, ATransferThatIsCutInTheMiddleEndsAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartOnNetwork());
  if (IsSkipped()) return;
  const std::string model = MakeModel("model.safetensors", 120 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  std::atomic<bool> cut = false;
  client::GetOptions get;
  get.on_progress = [&](const TransferProgress& progress) {
    if (progress.bytes_done > 0 && !cut.exchange(true)) (void)network_.Cut(0);
  };
  // Ends by itself, whether with the bytes (the cut came too late) or with an error.
  const auto replica = client(1).Get(Context(absl::Seconds(30)), "m", get);
  if (!replica.ok()) {
    EXPECT_FALSE(absl::IsDeadlineExceeded(replica.status())) << replica.status();
  } else {
    TC_ASSERT_OK(Compare(**replica, model).status());
  }
  if (!cut) {
    ASSERT_TRUE(network_.Cut(0));
  }
  TC_ASSERT_OK(invariants().Await(1, Soon(), [](const v1::GetStatusResponse& status) -> absl::Status {
    if (status.active_transfers() == 0) return absl::OkStatus();
    return absl::InternalError("the transfer still runs");
  }));
  absl::SleepFor(CutFor());
  ASSERT_TRUE(network_.Heal(0));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

}  // namespace
}  // namespace tensorcast
