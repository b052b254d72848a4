// One of two sources hangs: its daemon is stopped, its data port accepts and says nothing, or a byte comes
// every two seconds. The other source, or the files of the import, give everything; the one that hangs is
// overtaken, and the next get does without it. `peer_timeout` is longer than any test waits, so that nothing
// here comes from its end.
#include <gmock/gmock.h>
#include <signal.h>

#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "tests/e2e/listening_ports.h"
#include "tests/robustness/proxy.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = ProxyFault::Kind;

constexpr int kHanging = 0;  // behind the proxy
constexpr int kReceiver = 1;
constexpr int kOther = 2;
constexpr uint64_t kModelBytes = 24 << 20;
constexpr uint64_t kMiddle = 1'000'001;
constexpr int kEveryTime = 1 << 20;

class HangingSource : public RobustnessTest {
 protected:
  // With the model at `importer` and at `holder`, in memory.
  void StartNodes(int importer, int holder) {
    ClusterOptions options = DefaultOptions();
    options.daemons = 3;
    options.daemon_settings.push_back("daemon.peer_timeout=10m");
    options.settings_of_daemon.resize(options.daemons);
    for (int node = 0; node < options.daemons; ++node) {
      options.settings_of_daemon[node] = {absl::StrCat("daemon.host_id=host-", node),
                                          "daemon.tcp_connections=1"};
    }
    options.settings_of_daemon[kHanging].push_back(
        absl::StrCat("daemon.tcp_advertise=[\"", proxy_.address(), "\"]"));
    // A node that is stopped stays registered.
    options.global_store_settings.push_back("global_store.node_ttl=10m");
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    const std::set<int> ports = ListeningPorts(cluster_->daemon(kHanging).pid());
    ASSERT_EQ(ports.size(), 1u);
    proxy_.ForwardTo(*ports.begin());
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(importer, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(client(holder).Get(Context(), "m").status());
    TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 2));
    if (importer == kReceiver) return;
    TransferReport report;
    ASSERT_NO_FATAL_FAILURE(Get("two good sources", report));
  }

  // Gets it at the receiver, and drops it there again. The time is printed for
  // tools/workshop/bench/RESULTS.md.
  void Get(const std::string& what, TransferReport& report) {
    {
      const SteadyTime start = SteadyNow();
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(kReceiver).Get(Context(), "m"));
      std::cout << "[ FIGURE   ] " << what << ": " << absl::ToInt64Milliseconds(SteadyNow() - start)
                << " ms\n";
      TC_ASSERT_OK(Compare(*replica, model_).status());
      ASSERT_TRUE(replica->transfer().has_value());
      report = *replica->transfer();
    }
    TC_ASSERT_OK(DropReplicas(kReceiver, artifact_));
  }

  static std::vector<std::string> Givers(const TransferReport& report) {
    std::vector<std::string> names;
    for (const SourceReport& source : report.sources) {
      if (source.chunks > 0) names.push_back(source.source.name);
    }
    return names;
  }

  void AwaitInLog(const std::string& path, const std::string& text) {
    EXPECT_TRUE(testing::Eventually([&] { return FileTail(path, 10'000).find(text) != std::string::npos; },
                                    kStepTimeout))
        << text << " is not in " << path;
  }

  // The hanging one gave nothing to a first get, and is not even opened for the next.
  void ExpectOvertakenOnce() {
    TransferReport report;
    ASSERT_NO_FATAL_FAILURE(Get("one of two sources hangs", report));
    EXPECT_THAT(Givers(report), Contains(HasSubstr("node-2")));
    AwaitInLog(cluster_->daemon(kReceiver).log_path(), "fetch from node-0 under grant");
    AwaitInLog(cluster_->global_store().log_path(), "over tcp overtaken");
    ASSERT_NO_FATAL_FAILURE(Get("the next get", report));
    EXPECT_THAT(Givers(report), Each(HasSubstr("node-2")));
    for (const SourceReport& source : report.sources) EXPECT_EQ(source.loss, std::nullopt);
  }

  Proxy proxy_;  // outlives the daemons
  std::string model_;
  std::string artifact_;
};

TEST_F(HangingSource, SourceDaemonIsStopped_OtherSourceSuppliesAll) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(kHanging, kOther));
  TC_ASSERT_OK(cluster_->daemon(kHanging).Signal(SIGSTOP));
  ExpectOvertakenOnce();
  TC_ASSERT_OK(cluster_->daemon(kHanging).Signal(SIGCONT));
}

TEST_F(HangingSource, DataPortOfSourceIsSilent_OtherSourceSuppliesAll) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(kHanging, kOther));
  proxy_.Set({.kind = Kind::kSwallow, .connections = kEveryTime});
  ExpectOvertakenOnce();
}

TEST_F(HangingSource, SourceTrickles_OtherSourceSuppliesAll) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(kHanging, kOther));
  proxy_.Set({.kind = Kind::kTrickle, .after = 100, .connections = kEveryTime});
  ExpectOvertakenOnce();
}

TEST_F(HangingSource, OnlySourceTrickles_OriginOfReceiverSuppliesAll) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(kReceiver, kHanging));
  TC_ASSERT_OK(DropReplicas(kReceiver, artifact_));
  proxy_.Set({.kind = Kind::kTrickle, .after = kMiddle, .connections = kEveryTime});
  TransferReport report;
  ASSERT_NO_FATAL_FAILURE(Get("the only source trickles, with the files of the import", report));
  EXPECT_THAT(Givers(report), Contains(Not(HasSubstr("node-0"))));
}

}  // namespace
}  // namespace tensorcast
