// A proxy between two daemons that delays, cuts, splits, swallows or changes what they say over
// the lane tcp, in clear and by TLS: a get ends with the right bytes, by another try or from another source,
// or with an error that says why, and both daemons serve their own throughout.
#include <gmock/gmock.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "security/testing/test_authority.h"
#include "tests/e2e/listening_ports.h"
#include "tests/robustness/proxy.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ProxyFault::Kind;

constexpr int kSource = 0;  // behind the proxy
constexpr int kReceiver = 1;
constexpr int kOther = 2;  // where there is another source
constexpr uint64_t kModelBytes = 8 << 20;
constexpr uint64_t kSmallBytes = 64 << 10;
constexpr uint64_t kMiddle = 3'000'001;  // of the model, in a frame
constexpr int kEveryTime = 1 << 20;

// The parameter: whether there are certificates.
class ProxyBetween : public RobustnessTest, public ::testing::WithParamInterface<bool> {
 protected:
  static bool Secured() { return GetParam(); }

  void StartNodes(int daemons = 2) {
    ClusterOptions options = FastOptions();
    options.daemons = daemons;
    options.settings_of_daemon.resize(daemons);
    for (int node = 0; node < daemons; ++node) {
      options.settings_of_daemon[node] = {absl::StrCat("daemon.host_id=host-", node),
                                          "daemon.tcp_connections=1"};
    }
    options.settings_of_daemon[kSource].push_back(
        absl::StrCat("daemon.tcp_advertise=[\"", proxy_.address(), "\"]"));
    if (daemons > kOther) {
      options.settings_of_daemon[kOther].push_back(
          absl::StrCat("daemon.tcp_advertise=[\"", other_.address(), "\"]"));
    }
    if (Secured()) UseCertificates(options, authority_);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    ASSERT_NO_FATAL_FAILURE(Forward(proxy_, kSource));
    if (daemons > kOther) {
      ASSERT_NO_FATAL_FAILURE(Forward(other_, kOther));
    }
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kSource, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 1));
  }

  void Forward(Proxy& proxy, int node) {
    std::set<int> ports = ListeningPorts(cluster_->daemon(node).pid());
    if (Secured()) ports.erase(PortOf(cluster_->addresses(node).grpc));
    ASSERT_EQ(ports.size(), 1u);
    proxy.ForwardTo(*ports.begin());
  }

  std::vector<std::string> SourcesOf(const client::Replica& replica) {
    std::vector<std::string> sources;
    for (const StageReport& stage : replica.transfer()->stages) {
      if (stage.stage == Stage::kFetch) sources.push_back(stage.source.name);
    }
    return sources;
  }

  void ExpectBothServeTheirOwn() {
    TC_ASSERT_OK_AND_ASSIGN(const auto own, client(kSource).Get(Context(), "m"));
    TC_ASSERT_OK(Compare(*own, model_).status());
    TC_ASSERT_OK(client(kReceiver).GetStatus(Context()).status());
  }

  // With the fault in the first connection, a get comes to the right bytes by another.
  void ExpectGotDespite(const ProxyFault& fault) {
    proxy_.Set(fault);
    {
      const auto replica = client(kReceiver).Get(Context(), "m", {.lane = "tcp"});
      TC_ASSERT_OK(replica.status());
      TC_ASSERT_OK(Compare(**replica, model_).status());
    }
    EXPECT_EQ(proxy_.faults_done(), fault.connections);
    ExpectBothServeTheirOwn();
    TC_ASSERT_OK(DropReplicas(kReceiver, artifact_));
    TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 1));
  }

  security::testing::TestAuthority authority_;
  Proxy proxy_;  // they outlive the daemons
  Proxy other_;
  std::string model_;
  std::string artifact_;
};

INSTANTIATE_TEST_SUITE_P(, ProxyBetween, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WithTls" : "InClear"; });

TEST_P(ProxyBetween, ConnectionDelayedCutOrSwallowed_PullSucceedsByRetry) {
  ASSERT_NO_FATAL_FAILURE(StartNodes());
  for (const ProxyFault& fault :
       {ProxyFault{.kind = Kind::kDelay}, ProxyFault{.kind = Kind::kEnd},
        ProxyFault{.kind = Kind::kEnd, .after = kMiddle}, ProxyFault{.kind = Kind::kReset, .after = 10},
        ProxyFault{.kind = Kind::kReset, .after = kMiddle}, ProxyFault{.kind = Kind::kSwallow},
        ProxyFault{.kind = Kind::kSwallow, .after = kMiddle}}) {
    SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault.kind), " after ", fault.after));
    ASSERT_NO_FATAL_FAILURE(ExpectGotDespite(fault));
  }
}

TEST_P(ProxyBetween, BytesDeliveredSingly_PullSucceeds) {
  ASSERT_NO_FATAL_FAILURE(StartNodes());
  const std::string small = MakeModel("small.safetensors", kSmallBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kSource, "small", small));
  TC_ASSERT_OK(AwaitReplicas(kReceiver, put.artifact_id, 1));
  proxy_.Set({.kind = Kind::kSingleBytes});
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(kReceiver).Get(Context(), "small", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*replica, small).status());
  EXPECT_EQ(proxy_.faults_done(), 1);
}

// TLS tells it from the source's word, and the source may be asked again; in clear the digest does, and the
// source that sent it is not asked again.
TEST_P(ProxyBetween, FlippedBit_IsDetectedAndPullSucceeds) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(/*daemons=*/3));
  if (Secured()) {
    for (const uint64_t after : {0, 100, 2'000, 3'000'001}) {
      ASSERT_NO_FATAL_FAILURE(ExpectGotDespite({.kind = Kind::kFlip, .after = after})) << after;
    }
    return;
  }
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(kOther));
  proxy_.Set({});
  TC_ASSERT_OK(client(kOther).Get(Context(), "m", {.location = "disk"}).status());
  TC_ASSERT_OK(DropReplicas(kOther, artifact_));
  TC_ASSERT_OK(AwaitReplicas(kReceiver, artifact_, 2));
  // Sources are used side by side: the other one says nothing until this one has lied.
  proxy_.Set({.kind = Kind::kFlip, .after = kMiddle});
  other_.Cut();
  const auto get = client(kReceiver).StartGet(Context(), "m", {.lane = "tcp"});
  EXPECT_TRUE(testing::Eventually([this] { return proxy_.faults_done() == 1; }));
  other_.Heal();
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(Soon()));
  TC_ASSERT_OK(Compare(*replica, model_).status());
  EXPECT_EQ(proxy_.faults_done(), 1);
  EXPECT_GE(replica->transfer()->refetched_chunks, 1);
  EXPECT_THAT(SourcesOf(*replica), ElementsAre(HasSubstr("node-0"), HasSubstr("node-2")));
  ExpectBothServeTheirOwn();
}

TEST_P(ProxyBetween, OtherProtocolVersion_IsRefusedAndPullSucceedsByRetry) {
  ASSERT_NO_FATAL_FAILURE(StartNodes());
  // The first byte of WELCOME's body; TLS has no such byte to be changed.
  constexpr uint64_t kVersionAt = 8;
  const ProxyFault fault =
      Secured() ? ProxyFault{.kind = Kind::kReplace, .after = 0, .bytes = "HTTP/1.1 400 Bad Request\r\n\r\n"}
                : ProxyFault{.kind = Kind::kReplace, .after = kVersionAt, .bytes = "\x09"};
  ASSERT_NO_FATAL_FAILURE(ExpectGotDespite(fault));
  if (!Secured()) {
    EXPECT_THAT(
        FileTail(cluster_->daemon_directory(kReceiver) + "/log", 1000),
        AllOf(HasSubstr("version 9 of the pull protocol"), HasSubstr("this receiver speaks version 4")));
  }
}

TEST_P(ProxyBetween, PullCutEveryTime_FailsAndNamesSource) {
  ASSERT_NO_FATAL_FAILURE(StartNodes());
  proxy_.Set({.kind = Kind::kEnd, .connections = kEveryTime});
  const auto got = client(kReceiver).Get(Context(absl::Seconds(5)), "m", {.lane = "tcp"});
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("node-0"));
  TC_ASSERT_OK(AwaitNoIngests(kReceiver));
  TC_ASSERT_OK_AND_ASSIGN(const auto receiver, Admin(kReceiver));
  TC_ASSERT_OK_AND_ASSIGN(const auto held, receiver->ListReplicas(Context(), ""));
  for (const v1::Replica& replica : held) EXPECT_EQ(replica.state(), v1::REPLICA_STATE_PARTIAL);
  ExpectBothServeTheirOwn();
  proxy_.Set({});
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(kReceiver).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
}

}  // namespace
}  // namespace tensorcast
