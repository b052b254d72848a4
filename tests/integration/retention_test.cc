// A training loop: version after version under one key, in a pool with room for a few of them.
#include <algorithm>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kKey[] = "policy";
constexpr uint64_t kImageBytes = 12 << 20;  // a node's pool has room for four, beside its buffers
constexpr int kVersions = 50;

class RetentionTest : public ::testing::Test {
 protected:
  static TestArtifact Version(int number) { return MakeTestArtifact(number, {kImageBytes}); }

  static absl::StatusOr<std::string> Put(TestNode& node, int number, client::PutOptions options = {}) {
    const TestArtifact version = Version(number);
    const client::PutTensor tensor{
        .name = "weights", .dtype = DType::kU8, .shape = {kImageBytes}, .bytes = version.image};
    if (!options.key.has_value()) options.key = kKey;
    absl::StatusOr<client::PutResult> put = node.client().Put(Soon(), {&tensor, 1}, {}, options);
    if (!put.ok()) return put.status();
    return put->artifact_id;
  }
  // Puts versions until the pool was filled several times over.
  static std::vector<std::string> RunLoop(TestNode& node, client::PutOptions options = {}) {
    std::vector<std::string> ids;
    for (int number = 1; number <= kVersions; ++number) {
      const absl::StatusOr<std::string> id = Put(node, number, options);
      EXPECT_TRUE(id.ok()) << "version " << number << ": " << id.status();
      if (!id.ok()) break;
      ids.push_back(*id);
    }
    return ids;
  }
  static bool Gives(TestNode& node, const std::string& artifact, int number) {
    const auto replica = node.client().Get(Soon(), artifact, {});
    EXPECT_TRUE(replica.ok()) << artifact << ": " << replica.status();
    if (!replica.ok()) return false;
    const TestArtifact version = Version(number);
    return std::ranges::equal((*replica)->image().first(version.image.size()), version.image);
  }
  static absl::StatusCode GetCode(TestNode& node, const std::string& artifact) {
    return node.client().Get(Soon(), artifact, {}).status().code();
  }
  static size_t Artifacts(TestNode& node) {
    return node.admin().ListArtifacts(Soon(), false, absl::ZeroDuration())->size();
  }

  TestCluster cluster_;
};

TEST_F(RetentionTest, ManyPutsUnderOneKey_NeverFillThePool) {
  TestNode& node = cluster_.AddNode("a");
  const std::vector<std::string> ids = RunLoop(node);
  ASSERT_EQ(ids.size(), kVersions);
  EXPECT_TRUE(Gives(node, kKey, kVersions));
  EXPECT_TRUE(Gives(node, ids[kVersions - 2], kVersions - 1)) << "the version before is kept";
  EXPECT_EQ(GetCode(node, ids[0]), absl::StatusCode::kNotFound);
  EXPECT_LE(Artifacts(node), 4u) << "manifests go with the last replica";
  const auto key = node.client().ResolveKey(Soon(), kKey);
  ASSERT_EQ(key->earlier.size(), 1u);
  EXPECT_EQ(key->earlier[0].artifact_id, ids[kVersions - 2]);
  EXPECT_EQ(key->keep, 2u);
}

TEST_F(RetentionTest, PutWithKeep_KeepsThatManyVersions) {
  TestNode& node = cluster_.AddNode("a");
  for (const uint32_t keep : {1u, 3u}) {
    const std::vector<std::string> ids = RunLoop(node, {.key = absl::StrCat("keep/", keep), .keep = keep});
    ASSERT_EQ(ids.size(), kVersions);
    for (uint32_t back = 0; back < keep; ++back) {
      EXPECT_TRUE(Gives(node, ids[ids.size() - 1 - back], kVersions - static_cast<int>(back)));
    }
    EXPECT_EQ(node.client().ResolveKey(Soon(), absl::StrCat("keep/", keep))->earlier.size(), keep - 1);
    ASSERT_TRUE(node.admin().ListArtifacts(Soon(), true, absl::ZeroDuration()).ok());
    ASSERT_TRUE(node.client().DeleteKey(Soon(), absl::StrCat("keep/", keep)).ok());
    ASSERT_TRUE(node.admin().DeleteArtifact(Soon(), ids.back()).ok());
  }
}

TEST_F(RetentionTest, LeaseOnOldVersion_KeepsItUntilLeaseEnds) {
  TestNode& node = cluster_.AddNode("a");
  const absl::StatusOr<std::string> first = Put(node, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  auto reader = node.client().Get(Soon(), kKey, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (int number = 2; number <= 20; ++number) ASSERT_TRUE(Put(node, number).ok()) << number;
  EXPECT_TRUE(std::ranges::equal((*reader)->image().first(kImageBytes), Version(1).image));
  EXPECT_TRUE(Gives(node, *first, 1));
  reader->reset();
  for (int number = 21; number <= 30; ++number) ASSERT_TRUE(Put(node, number).ok()) << number;
  EXPECT_EQ(GetCode(node, *first), absl::StatusCode::kNotFound);
}

TEST_F(RetentionTest, OldVersionsPulledByOtherNode_AreEvictedThere) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  std::deque<std::string> ids;
  for (int number = 1; number <= 20; ++number) {
    const absl::StatusOr<std::string> id = Put(a, number);
    ASSERT_TRUE(id.ok()) << number << ": " << id.status();
    ids.push_back(*id);
    ASSERT_TRUE(Gives(b, kKey, number)) << number;
  }
  EXPECT_TRUE(Gives(b, ids[18], 19));
  EXPECT_TRUE(Eventually([&] { return Artifacts(a) <= 8; })) << "no more than two pools hold";
  EXPECT_EQ(GetCode(a, ids[0]), absl::StatusCode::kNotFound);
}

TEST_F(RetentionTest, RestartedGlobalStore_KnowsKeptVersions) {
  TestNode& node = cluster_.AddNode("a");
  std::string before;
  for (int number = 1; number <= 30; ++number) {
    if (number % 10 == 0) cluster_.RestartGlobalStore();
    const absl::StatusOr<std::string> id =
        Put(node, number, {.keep = number == 1 ? std::optional(3u) : std::nullopt});
    ASSERT_TRUE(id.ok()) << number << ": " << id.status();
    if (number == 28) before = *id;
  }
  EXPECT_TRUE(Gives(node, before, 28)) << "three are kept, as the first put said";
}

TEST_F(RetentionTest, PoolFullOfKeptVersions_ErrorNamesTheKey) {
  TestNode& node = cluster_.AddNode("a");
  absl::Status full;
  for (int number = 1; number <= 10 && full.ok(); ++number) full = Put(node, number, {.keep = 10}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr("key policy, and the key keeps 10 versions"),
                                                 HasSubstr("tensorcast put --keep")));
}

TEST_F(RetentionTest, PoolFullOfNamelessArtifacts_ErrorNamesGc) {
  TestNode& node = cluster_.AddNode("a");
  absl::Status full;
  for (int number = 1; number <= 10 && full.ok(); ++number) {
    const TestArtifact version = Version(number);
    const client::PutTensor tensor{
        .name = "weights", .dtype = DType::kU8, .shape = {kImageBytes}, .bytes = version.image};
    full = node.client().Put(Soon(), {&tensor, 1}, {}, {}).status();
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("4 idle replicas"), HasSubstr("tensorcast gc --older-than 0s")));
}

// Each get resolves the key, and the version that it found may be gone before it is brought.
TEST_F(RetentionTest, GetsBesideFastRebinding_AlwaysFindAVersion) {
  TestNode& a = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster_.AddNode("b", OnItsOwnHost);
  ASSERT_TRUE(Put(a, 1, {.keep = 1}).ok());
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const auto got = b.client().Get(Soon(), kKey, {});
      EXPECT_TRUE(got.ok()) << got.status();
    }
  });
  for (int number = 2; number <= kVersions; ++number) {
    const absl::StatusOr<std::string> id = Put(a, number);
    EXPECT_TRUE(id.ok()) << number << ": " << id.status();
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace tensorcast::testing
