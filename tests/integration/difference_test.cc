// Versions of a model on two nodes: the second one gets each as a difference from what it holds.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/replica/transfer_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kKey[] = "policy";
constexpr uint32_t kChunks = 8;

class Differences : public ::testing::Test {
 protected:
  void SetUp() override {
    a_ = &cluster_.AddNode("a", OnItsOwnHost);
    b_ = &cluster_.AddNode("b", OnItsOwnHost);
  }

  // The next version: 1 % of its bytes differ, in every chunk.
  const TestArtifact& Step() {
    ++version_;
    for (uint64_t i = version_; i < artifact_.image.size(); i += 100) artifact_.image[i] ^= std::byte{5};
    return artifact_;
  }
  client::PutResult Put(const std::string& base) {
    const std::string path = cluster_.WriteModel(absl::StrCat("v", version_), artifact_);
    auto put = a_->client().Import(Soon(), path, {.key = kKey, .base = base});
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *std::move(put) : client::PutResult();
  }
  // What the newest version is on b: compared, and let go.
  TransferReport GetOnB() {
    const auto replica = b_->client().Get(Soon(), kKey);
    EXPECT_TRUE(replica.ok()) << replica.status();
    if (!replica.ok()) return {};
    for (const Tensor& tensor : artifact_.layout.tensors) {
      const auto view = (*replica)->Find(tensor.name);
      EXPECT_TRUE(view.ok()) << view.status();
      if (!view.ok()) continue;
      EXPECT_TRUE(
          std::ranges::equal(view->host, std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes)))
          << tensor.name;
    }
    return (*replica)->transfer().value_or(TransferReport());
  }
  static uint64_t BytesOf(const TransferReport& report, std::string_view lane) {
    uint64_t bytes = 0;
    for (const SourceReport& source : report.sources) bytes += source.source.lane == lane ? source.bytes : 0;
    return bytes;
  }
  static uint64_t Received(TestNode& node) {
    const auto status = node.admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    uint64_t bytes = 0;
    for (const v1::LaneTotal& lane : status->lanes()) bytes += lane.bytes_received();
    return bytes;
  }
  static void Evict(TestNode& node, const std::string& artifact_id) {
    const absl::Status evicted = node.admin().EvictReplica(Soon(), artifact_id, /*force=*/true);
    EXPECT_TRUE(evicted.ok()) << evicted;
  }

  TestArtifact artifact_ = MakeTestArtifact(1, std::vector<uint64_t>(kChunks, kTestChunkBytes));
  const uint64_t image_bytes_ = artifact_.layout.image_bytes;
  uint64_t version_ = 0;
  TestCluster cluster_;
  TestNode* a_ = nullptr;
  TestNode* b_ = nullptr;
};

TEST_F(Differences, NextVersion_IsRebuiltFromTheOneThatIsThere) {
  Put("none");
  EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), 0u) << "there is no earlier version";
  const uint64_t before = Received(*b_);
  Step();
  const client::PutResult put = Put("auto");
  ASSERT_TRUE(put.difference.has_value()) << put.no_difference;
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_LT((Received(*b_) - before) * 10, image_bytes_);
  EXPECT_GT(Received(*b_), before) << "the difference came from somewhere";
}

TEST_F(Differences, SeveralVersionsBehind_AreFolded) {
  Put("none");
  GetOnB();
  const uint64_t before = Received(*b_);
  for (int i = 0; i < 3; ++i) {
    Step();
    const client::PutResult put = Put("auto");
    ASSERT_TRUE(put.difference.has_value()) << put.no_difference;
  }
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_LT((Received(*b_) - before) * 5, image_bytes_);
}

TEST_F(Differences, EvictedBase_VersionComesWhole) {
  const client::PutResult base = Put("none");
  GetOnB();
  Evict(*b_, base.artifact_id);
  Step();
  Put("auto");
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), 0u);
  EXPECT_EQ(report.bytes, image_bytes_);
}

TEST_F(Differences, DictInAnotherOrder_IsTheNextVersionAllTheSame) {
  const auto put = [&](bool reversed, const std::string& base) {
    std::vector<client::PutTensor> tensors;
    for (const Tensor& tensor : artifact_.layout.tensors) {
      tensors.push_back({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .bytes = std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes)});
    }
    if (reversed) std::ranges::reverse(tensors);
    return a_->client().Put(Soon(), tensors, {}, {.key = kKey, .base = base});
  };
  ASSERT_TRUE(put(/*reversed=*/false, "none").ok());
  GetOnB();
  Step();
  const auto next = put(/*reversed=*/true, "auto");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->difference.has_value()) << next->no_difference;
  EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
}

TEST_F(Differences, RequiredDifferenceWithoutBase_PublishesNothing) {
  const std::string path = cluster_.WriteModel("v0", artifact_);
  const auto put =
      a_->client().Import(Soon(), path, {.key = kKey, .base = "auto", .require_difference = true});
  EXPECT_EQ(put.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(put.status().message()),
              AllOf(HasSubstr("not bound yet"), HasSubstr("without the requirement")));
  EXPECT_EQ(a_->client().ResolveKey(Soon(), kKey).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tensorcast::testing
