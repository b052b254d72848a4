// Two global stores on a real etcd: which one leads, which one waits, and what people are told.
#include "global_store/app/etcd_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::global_store {
namespace {

using etcd::EtcdCluster;
using tensorcast::testing::Eventually;
using ::testing::ElementsAre;

class EtcdGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = EtcdCluster::Start(folder_.File("etcd"), 1);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  EtcdOptions Options(const std::string& name) const {
    EtcdOptions options;
    options.client.endpoints = cluster_->endpoints();
    options.leadership = {
        .prefix = "tensorcast", .ttl = absl::Minutes(1), .name = name, .address = name + ":7000"};
    return options;
  }
  std::future<std::unique_ptr<EtcdGroup>> Join(const std::string& name) const {
    return std::async(std::launch::async, [options = Options(name)] {
      auto group = EtcdGroup::JoinAndLead(options);
      EXPECT_TRUE(group.ok()) << group.status();
      return group.ok() ? *std::move(group) : nullptr;
    });
  }
  // "a:7000*": that one leads.
  static std::vector<std::string> Stores(const EtcdGroup& group) {
    v1::GetClusterStatusResponse response;
    group.Describe(RequestContext::Background(), response);
    std::vector<std::string> stores;
    for (const v1::StoreMember& store : response.stores()) {
      stores.push_back(absl::StrCat(store.address(), store.leads() ? "*" : ""));
    }
    return stores;
  }

  tensorcast::testing::TempFolder folder_;
  std::unique_ptr<EtcdCluster> cluster_;
};

TEST_F(EtcdGroupTest, TwoStores_StatusSaysWhichLeadsAndWhichStandsBy) {
  std::unique_ptr<EtcdGroup> a = Join("a").get();
  ASSERT_NE(a, nullptr);
  auto joining = Join("b");
  EXPECT_TRUE(Eventually([&] { return Stores(*a).size() == 2; }));
  EXPECT_THAT(Stores(*a), ElementsAre("a:7000*", "b:7000"));
  const uint64_t epoch = a->leadership()->epoch().number;
  a.reset();
  const std::unique_ptr<EtcdGroup> b = joining.get();
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(Stores(*b), ElementsAre("b:7000*")) << "the one before has left";
  EXPECT_EQ(b->leadership()->epoch().number, epoch + 1);
}

TEST_F(EtcdGroupTest, LeaderMetrics_ReportLeaseAndEtcdUsage) {
  namespace metrics = otel::metrics;
  using otel::testing::ReadGauge;
  std::unique_ptr<EtcdGroup> a = Join("a").get();
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(ReadGauge(metrics::kLeaderLeads.id(), {}), 1);
  EXPECT_EQ(ReadGauge(metrics::kLeaderEpoch.id(), {}), 1);
  EXPECT_GT(ReadGauge(metrics::kLeaderLeaseSeconds.id(), {}), 0);
  EXPECT_GT(ReadGauge(metrics::kMetadataBytes.id(), {}), 0);
  v1::GetClusterStatusResponse response;
  a->Describe(RequestContext::Background(), response);
  EXPECT_EQ(response.metadata_bytes(), ReadGauge(metrics::kMetadataBytes.id(), {}));
  EXPECT_EQ(response.metadata_quota_bytes(), EtcdOptions().quota_bytes);
  // What it knows of itself is told though etcd is away.
  cluster_->Signal(0, SIGSTOP);
  EXPECT_THAT(Stores(*a), ElementsAre("a:7000*"));
  a->leadership()->StepDown(absl::UnavailableError("over"));
  EXPECT_EQ(ReadGauge(metrics::kLeaderLeads.id(), {}), 0);
  EXPECT_EQ(ReadGauge(metrics::kLeaderLeaseSeconds.id(), {}), 0);
  cluster_->Signal(0, SIGCONT);
}

}  // namespace
}  // namespace tensorcast::global_store
