// A firewall between the hosts: the ports that SECURITY.md names are enough, and all of them are needed.
#include <gmock/gmock.h>

#include "tests/e2e/listening_ports.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast {
namespace {

using ::testing::ElementsAre;

class Firewall : public RobustnessTest {
 protected:
  void Allow(const std::vector<std::string>& ports) {
    for (int node : {0, 1}) {
      const absl::Status allowed = AllowOnly(node, ports);
      if (!allowed.ok()) GTEST_SKIP() << "this kernel's routing has no rules for ports: " << allowed;
    }
  }

  // A cluster with the lane tcp; its node 0 has the model "m".
  void StartOnDocumentedPorts() {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Make(2);
    if (!network.ok()) GTEST_SKIP() << network.status();
    network_ = *std::move(network);
    ClusterOptions options = FastOptions();
    options.lanes = {"tcp"};
    network_->UseDocumentedPorts(options);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    EXPECT_THAT(ListeningPorts(cluster_->global_store().pid()), ElementsAre(7000));
    model_ = MakeModel("model.safetensors", 8 << 20);
    TC_ASSERT_OK(Import(0, "m", model_).status());
  }

  std::unique_ptr<Network> network_;
  std::string model_;

 private:
  // To and from other hosts, TCP passes the node only where one end has a port of these, such as
  // {"7000", "7001"}. Replaces what was allowed before. By rules of the routing: there is `ip` wherever
  // there are namespaces, but not everywhere a packet filter.
  absl::Status AllowOnly(int node, const std::vector<std::string>& ports) {
    const auto rule = [&](std::vector<std::string> words) {
      words.insert(words.begin(), {"ip", "rule"});
      return network_->Run(node, words);
    };
    const std::string allow = "100", refuse = "200";
    while (rule({"del", "pref", allow}).ok()) {
    }
    rule({"del", "pref", refuse}).IgnoreError();
    for (const std::string& range : ports) {
      for (const char* end : {"dport", "sport"}) {
        TC_RETURN_IF_ERROR(rule({"add", "pref", allow, "ipproto", "tcp", end, range, "lookup", "main"}));
      }
    }
    return rule({"add", "pref", refuse, "to", Network::Subnet(), "ipproto", "tcp", "prohibit"});
  }
};

TEST_F(Firewall, OnlyDocumentedPortsOpen_TcpPullSucceeds) {
  ASSERT_NO_FATAL_FAILURE(StartOnDocumentedPorts());
  if (IsSkipped()) return;
  for (int node : {0, 1}) EXPECT_THAT(ListeningPorts(cluster_->daemon(node).pid()), ElementsAre(7001, 7002));
  ASSERT_NO_FATAL_FAILURE(Allow({"7000", "7001"}));
  if (IsSkipped()) return;
  EXPECT_FALSE(client(1).Get(Context(absl::Seconds(2)), "m", {.lane = "tcp"}).ok());

  ASSERT_NO_FATAL_FAILURE(Allow({"7000", "7001", "7002"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
}

}  // namespace
}  // namespace tensorcast
