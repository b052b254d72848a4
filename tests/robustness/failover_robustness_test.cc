// Two global stores on a real etcd of three members: the one that leads is killed, stopped and continued, and
// told to end, while daemons that know both addresses publish.
#include <gmock/gmock.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "security/testing/test_authority.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using global_store::etcd::EtcdCluster;

class Failover : public RobustnessTest {
 protected:
  // With certificates where there is an authority.
  void Start(const security::testing::TestAuthority* authority = nullptr) {
    TC_ASSERT_OK_AND_ASSIGN(etcd_, EtcdCluster::Start(directory_->path() + "/etcd", 3));
    ClusterOptions options = FastOptions();
    for (const int port : {7000, 7001}) {
      options.global_store_addresses.push_back(absl::StrCat(EtcdCluster::Host(), ":", port));
    }
    options.global_store_settings = {"global_store.metadata_store=etcd",
                                     "global_store.heartbeat_interval=200ms", "global_store.node_ttl=2s",
                                     "global_store.etcd.endpoints=" + absl::StrJoin(etcd_->endpoints(), ",")};
    if (authority != nullptr) UseCertificates(options, *authority);
    StartRobustCluster(options);
  }

  // Binds the key again and again as long as the daemon's global store is away; what was acknowledged once is
  // there for ever, and each acknowledgement is the next revision.
  void Bind(const std::string& key, uint64_t revision) {
    TC_ASSERT_OK_AND_ASSIGN(const client::KeyInfo bound,
                            client(0).BindKey(Context(), key, artifact_, revision - 1));
    EXPECT_EQ(bound.revision, revision);
  }

  std::unique_ptr<EtcdCluster> etcd_;
  std::string artifact_;
};

TEST_F(Failover, LeaderKilledEndedOrStopped_AcknowledgedKeysSurvive) {
  Start();
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  artifact_ = put.artifact_id;
  Bind("m", 2);

  // Killed.
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGKILL));
  Bind("m", 3);
  TC_ASSERT_OK_AND_ASSIGN(const auto pulled, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*pulled, model).status());
  TC_ASSERT_OK(AwaitReplicas(1, artifact_, 2));

  // Told to end: the next one need not wait for the lease.
  TC_ASSERT_OK(cluster_->RestartGlobalStore(0));
  TC_ASSERT_OK_AND_ASSIGN(const int exit_code, cluster_->global_store(1).Stop(kStepTimeout));
  EXPECT_EQ(exit_code, 0);
  Bind("m", 4);

  // Stopped: it does not know that another leads, and says nothing any more when it goes on.
  TC_ASSERT_OK(cluster_->RestartGlobalStore(1));
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGSTOP));
  Bind("m", 5);
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGCONT));
  TC_ASSERT_OK_AND_ASSIGN(const int lost, cluster_->global_store(0).Wait(Soon()));
  EXPECT_EQ(lost, 1) << "its supervisor starts it again, to stand by";
  Bind("m", 6);

  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(AwaitReplicas(0, artifact_, 2));
  for (int node = 0; node < 2; ++node) {
    TC_ASSERT_OK_AND_ASSIGN(const client::KeyInfo key, client(node).ResolveKey(Context(), "m"));
    EXPECT_EQ(key.revision, 6u);
  }
}

// The daemons' one channel to several addresses finds the next leader by TLS, too.
TEST_F(Failover, LeadersKilledWithCertificates_DaemonsFollowNextLeader) {
  const security::testing::TestAuthority authority;
  Start(&authority);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", MakeModel("model.safetensors", 20 << 20)));
  artifact_ = put.artifact_id;
  Bind("m", 2);
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGKILL));
  Bind("m", 3);
  TC_ASSERT_OK(cluster_->RestartGlobalStore(0));
  TC_ASSERT_OK(cluster_->AwaitLeader(Soon()));
  TC_ASSERT_OK(cluster_->global_store(1).Signal(SIGKILL));
  Bind("m", 4);
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "tcp"}).status());
}

}  // namespace
}  // namespace tensorcast
