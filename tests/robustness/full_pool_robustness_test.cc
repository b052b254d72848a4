// Full pools: what a node keeps for others gives way to what it needs itself.
#include <signal.h>

#include <string>
#include <vector>

#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using testing::Eventually;

const std::vector<std::string> kPart = {"model.layers.[0-9].*"};

class FullPool : public RobustnessTest {
 protected:
  // Node 1 has a part of the model `m`, in a pool that has room for one model and not for the part beside it,
  // and gives little of it in a second.
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    options.daemons = 3;
    options.settings_of_daemon = {{"daemon.limits.send=8MiB"},
                                  {"daemon.host_pool=80MiB", "daemon.limits.send=1MiB"}};
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("m.safetensors", 16 << 20);
    TC_ASSERT_OK_AND_ASSIGN(put_, Import(0, "m", model_));
    TC_ASSERT_OK(client(1).Get(Context(), "m", {.lane = "tcp", .tensors = kPart}).status());
  }

  v1::GetStatusResponse Status(int node) {
    const auto admin = Admin(node);
    EXPECT_TRUE(admin.ok()) << admin.status();
    const auto status = (*admin)->GetStatus(Context());
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(v1::GetStatusResponse());
  }

  std::string model_;
  client::PutResult put_;
};

TEST_F(FullPool, FullPool_EvictsServedPartAndReceiverSwitchesSource) {
  // The only other source is away when the get begins, and back, with the files, before it loses the one it
  // has.
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
  const auto get = client(2).StartGet(Context(), "m", {.lane = "tcp", .tensors = kPart});
  ASSERT_TRUE(Eventually([&] { return Status(1).active_servings() > 0; }));
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  const std::string another = MakeModel("n.safetensors", 28 << 20, /*shards=*/1, /*seed=*/2);
  TC_ASSERT_OK(Import(1, "n", another).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(1));
  TC_ASSERT_OK_AND_ASSIGN(const auto left, admin->ListReplicas(Context(), put_.artifact_id));
  EXPECT_TRUE(left.empty());
  const v1::GetStatusResponse status = Status(1);
  EXPECT_EQ(status.active_servings(), 0u);
  ASSERT_GT(status.servings_size(), 0);
  EXPECT_EQ(status.servings(0).error().message(),
            "read the replica: the replica is being removed; use another source");
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(Soon()));
  EXPECT_FALSE(replica->tensors().empty());
  ASSERT_TRUE(replica->transfer().has_value());
  ASSERT_FALSE(replica->transfer()->sources.empty());
  EXPECT_EQ(replica->transfer()->sources.front().source.name, "node-1");
  EXPECT_EQ(replica->transfer()->sources.back().source.name, "node-0");
}

}  // namespace
}  // namespace tensorcast
