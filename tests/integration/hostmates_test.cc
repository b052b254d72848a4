// Daemons of one host: one pulls from another host, and the others attach to what it has while it fills.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kChunks = 9;
constexpr int kPassed = 4;  // chunks that come to b before it is held

// A has the artifact; b and c share another host.
class Hostmates : public ::testing::Test {
 protected:
  void SetUp() override {
    auto put = a_.client().Import(Soon(), cluster_.WriteModel("model", artifact_), {});
    ASSERT_TRUE(put.ok()) << put.status();
    id_ = put->artifact_id;
  }

  // B pulls from a and is held in the middle; c has what b has.
  void StartBoth() {
    b_.gate().Hold(kPassed);
    of_b_ = b_.client().StartGet(Soon(), id_, {.attach = false});
    b_.gate().AwaitHeld(1);
    of_c_ = c_.client().StartGet(Soon(), id_, {});
    ASSERT_TRUE(Eventually([&] { return ChunksAt(c_) == kPassed; })) << ChunksAt(c_);
  }
  static uint32_t ChunksAt(TestNode& node) {
    const auto replicas = node.admin().ListReplicas(Soon(), "");
    EXPECT_TRUE(replicas.ok()) << replicas.status();
    return replicas.ok() && !replicas->empty() ? replicas->front().chunks_present() : 0;
  }
  static uint64_t Served(TestNode& node) {
    const auto status = node.admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    uint64_t bytes = 0;
    for (const v1::LaneTotal& lane : status->lanes()) bytes += lane.bytes_served();
    return bytes;
  }
  std::unique_ptr<client::Replica> ExpectWhole(absl::StatusOr<std::unique_ptr<client::Replica>> replica) {
    EXPECT_TRUE(replica.ok()) << replica.status();
    if (!replica.ok()) return nullptr;
    EXPECT_TRUE(std::ranges::equal((*replica)->image(), artifact_.image));
    return *std::move(replica);
  }
  static void OnOneHost(daemon::DaemonOptions& options) { options.host_id = "the host of b and c"; }

  TestCluster cluster_;
  TestNode& a_ = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b_ = cluster_.AddNode("b", OnOneHost);
  TestNode& c_ = cluster_.AddNode("c", OnOneHost);
  const TestArtifact artifact_ = MakeTestArtifact(1, std::vector<uint64_t>(kChunks, kTestChunkBytes));
  std::string id_;
  std::unique_ptr<client::PendingGet> of_b_;
  std::unique_ptr<client::PendingGet> of_c_;
};

TEST_F(Hostmates, TwoGetsOnOneHost_BytesCrossNetworkOnce) {
  ASSERT_NO_FATAL_FAILURE(StartBoth());
  EXPECT_TRUE(Eventually([&] { return b_.admin().GetStatus(Soon())->leases() > 0; }));
  b_.gate().Release();
  ASSERT_TRUE(of_b_->Wait(SteadyNow() + absl::Seconds(30)).ok());
  const auto replica = ExpectWhole(of_c_->Wait(SteadyNow() + absl::Seconds(30)));
  ASSERT_NE(replica, nullptr);
  EXPECT_THAT(LanesOf(replica->transfer()), ElementsAre("local"));
  EXPECT_EQ(replica->transfer()->verified_chunks, kChunks);
  EXPECT_TRUE(Eventually([&] { return Served(a_) == artifact_.image.size(); })) << Served(a_);
  EXPECT_TRUE(Eventually([&] { return b_.admin().GetStatus(Soon())->leases() == 0; }));
}

TEST_F(Hostmates, HostmateGetIsCancelled_ItsChunksAreNotPulledAgain) {
  ASSERT_NO_FATAL_FAILURE(StartBoth());
  of_b_->Cancel();
  const auto replica = ExpectWhole(of_c_->Wait(SteadyNow() + absl::Seconds(30)));
  ASSERT_NE(replica, nullptr);
  EXPECT_THAT(LanesOf(replica->transfer()), UnorderedElementsAre("local", "loopback"));
  b_.gate().Release();
  EXPECT_FALSE(of_b_->Wait(SteadyNow() + absl::Seconds(30)).ok());
  // B had asked for one more at most.
  EXPECT_TRUE(Eventually([&] { return Served(a_) >= artifact_.image.size(); })) << Served(a_);
  EXPECT_LE(Served(a_), artifact_.image.size() + kTestChunkBytes * kPassed / 2);
}

TEST_F(Hostmates, PartialReplicaOnSameHost_SuppliesItsChunksLocally) {
  auto some = b_.client().Get(Soon(), id_, {.tensors = {"tensor.[246]"}});
  ASSERT_TRUE(some.ok()) << some.status();
  auto fewer = c_.client().Get(Soon(), id_, {.lane = "local", .tensors = {"tensor.[26]"}});
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_THAT(LanesOf((*fewer)->transfer()), ElementsAre("local"));
  for (const client::TensorView& view : (*fewer)->tensors()) {
    const auto tensor = std::ranges::find(artifact_.layout.tensors, view.name, &Tensor::name);
    EXPECT_TRUE(
        std::ranges::equal(view.host, std::span(artifact_.image).subspan(tensor->offset, tensor->nbytes)))
        << view.name;
  }
  EXPECT_EQ(ChunksAt(c_), 2u);
  EXPECT_TRUE(Eventually([&] { return Served(a_) == 3 * kTestChunkBytes; })) << Served(a_);

  // The rest of it is elsewhere only.
  const auto whole = ExpectWhole(c_.client().Get(Soon(), id_, {}));
  ASSERT_NE(whole, nullptr);
  EXPECT_THAT(LanesOf(whole->transfer()), ::testing::Contains("loopback"));
}

}  // namespace
}  // namespace tensorcast::testing
