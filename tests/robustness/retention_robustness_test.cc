// A training loop with its global store killed in the middle, on SQLite and on etcd: the pool does not fill,
// and the store that comes after knows which versions are kept.
#include <gmock/gmock.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using global_store::etcd::EtcdCluster;

constexpr uint64_t kImageBytes = 32 << 20;  // the daemon's pool has room for four
constexpr int kVersions = 24;

class Retention : public RobustnessTest {
 protected:
  void PutVersion(int number) {
    const std::vector<std::byte> bytes(kImageBytes, static_cast<std::byte>(number));
    const client::PutTensor tensor{
        .name = "weights", .dtype = DType::kU8, .shape = {kImageBytes}, .bytes = bytes};
    client::PutOptions options{.key = "policy"};
    if (number == 1) options.keep = 3;
    TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, client(0).Put(Context(), {&tensor, 1}, {}, options));
    ids_.push_back(put.artifact_id);
  }
  // The last three are here, whole, and the first is gone.
  void ExpectThreeVersions() {
    TC_ASSERT_OK_AND_ASSIGN(const client::KeyInfo key, client(0).ResolveKey(Context(), "policy"));
    EXPECT_EQ(key.artifact_id, ids_.back());
    EXPECT_EQ(key.keep, 3u);
    ASSERT_EQ(key.earlier.size(), 2u);
    for (size_t back = 0; back < 3; ++back) {
      const size_t version = ids_.size() - back;
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), ids_[version - 1], {}));
      EXPECT_EQ(replica->image().front(), static_cast<std::byte>(version));
      EXPECT_EQ(replica->image()[kImageBytes - 1], static_cast<std::byte>(version));
    }
    EXPECT_EQ(client(0).Get(Context(), ids_.front(), {}).status().code(), absl::StatusCode::kNotFound);
  }

  std::unique_ptr<EtcdCluster> etcd_;
  std::vector<std::string> ids_;
};

TEST_F(Retention, StoreOnSqliteKilled_PutLoopContinues) {
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  StartRobustCluster(options);
  for (int number = 1; number <= kVersions && !HasFatalFailure(); ++number) {
    if (number % 8 == 0) {
      TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
      TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
      TC_ASSERT_OK(cluster_->RestartGlobalStore());
    }
    PutVersion(number);
  }
  ExpectThreeVersions();
}

TEST_F(Retention, LeaderOnEtcdKilled_NextLeaderKnowsKeptVersions) {
  TC_ASSERT_OK_AND_ASSIGN(etcd_, EtcdCluster::Start(directory_->path() + "/etcd", 1));
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  for (const int port : {7000, 7001}) {
    options.global_store_addresses.push_back(absl::StrCat(EtcdCluster::Host(), ":", port));
  }
  options.global_store_settings = {"global_store.metadata_store=etcd",
                                   "global_store.heartbeat_interval=200ms", "global_store.node_ttl=2s",
                                   "global_store.etcd.endpoints=" + absl::StrJoin(etcd_->endpoints(), ",")};
  StartRobustCluster(options);
  for (int number = 1; number <= kVersions && !HasFatalFailure(); ++number) {
    if (number == kVersions / 2) TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGKILL));
    PutVersion(number);
  }
  ExpectThreeVersions();
}

}  // namespace
}  // namespace tensorcast
