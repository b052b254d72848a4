#include "core/ingest/scatter_plan.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tensorcast::scatter_plan_test {
namespace {

constexpr uint64_t kBlock = uint64_t{256} << 10;

class ScatterPlanTest : public ::testing::Test {
 protected:
  static std::unique_ptr<HostPool> MakePool(uint64_t granules) {
    auto pool =
        HostPool::Create({.bytes = granules * kGranuleBytes, .use_huge_pages = false, .prefault_threads = 0});
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }
  static std::vector<std::byte> Random(uint64_t bytes) {
    std::mt19937 random(1);
    std::vector<std::byte> made(bytes);
    for (std::byte& one : made) one = static_cast<std::byte>(random());
    return made;
  }
  // An image of so many bytes in the pool, with these.
  HostAllocation Have(const std::vector<std::byte>& bytes) {
    auto image = pool_->Allocate(bytes.size());
    EXPECT_TRUE(image.ok()) << image.status();
    uint64_t done = 0;
    for (const HostSpan& span : image->Spans(0, bytes.size())) {
      std::copy_n(bytes.begin() + static_cast<int64_t>(done), span.size(), span.begin());
      done += span.size();
    }
    return *std::move(image);
  }
  static std::vector<std::byte> Read(const HostAllocation& image) {
    std::vector<std::byte> read;
    for (const HostSpan& span : image.Spans(0, image.bytes())) {
      read.insert(read.end(), span.begin(), span.end());
    }
    return read;
  }
  static absl::Status Add(ScatterPlan& plan, const HostAllocation& image, uint64_t offset,
                          std::span<const std::byte> wanted) {
    for (const HostSpan& there : image.Spans(offset, wanted.size())) {
      const absl::Status added = plan.Add(offset, there, wanted.first(there.size()));
      if (!added.ok()) return added;
      offset += there.size();
      wanted = wanted.subspan(there.size());
    }
    return absl::OkStatus();
  }
  ScatterPlan::Allocate FromPool() {
    return [this](uint64_t bytes) { return pool_->Allocate(bytes); };
  }

  const std::unique_ptr<HostPool> pool_ = MakePool(16);
};

TEST_F(ScatterPlanTest, SparseAndDenseBlocks_BecomeWantedImage) {
  const std::vector<std::byte> before = Random(3 * kGranuleBytes);
  std::vector<std::byte> wanted = before;
  for (uint64_t at = 0; at < kGranuleBytes; at += 150) wanted[at] ^= std::byte{1};             // sparse
  for (uint64_t at = kGranuleBytes; at < 2 * kGranuleBytes; ++at) wanted[at] ^= std::byte{1};  // every byte
  const HostAllocation image = Have(before);
  ScatterPlan plan(FromPool());
  ASSERT_TRUE(Add(plan, image, 0, wanted).ok());
  EXPECT_TRUE(Read(image) == before) << "written before it was to be";
  plan.Scatter(image, 3);
  EXPECT_TRUE(Read(image) == wanted);
  plan.Scatter(image, 1);
  EXPECT_TRUE(Read(image) == wanted) << "absolute values may be written twice";
}

TEST_F(ScatterPlanTest, EqualBytes_TakeNoMemory) {
  const std::vector<std::byte> before = Random(kGranuleBytes);
  const HostAllocation image = Have(before);
  ScatterPlan plan([](uint64_t) -> absl::StatusOr<HostAllocation> { return absl::InternalError("asked"); });
  EXPECT_TRUE(Add(plan, image, 0, before).ok());
  EXPECT_EQ(plan.kept_bytes(), 0u);
}

TEST_F(ScatterPlanTest, ChangedWords_TakeSixBytesEach) {
  const std::vector<std::byte> before = Random(kGranuleBytes);
  std::vector<std::byte> wanted = before;
  for (uint64_t at = 0; at < wanted.size(); at += 400) wanted[at] ^= std::byte{1};
  const HostAllocation image = Have(before);
  ScatterPlan plan(FromPool());
  ASSERT_TRUE(Add(plan, image, 0, wanted).ok());
  EXPECT_EQ(plan.kept_bytes(), 6 * ((wanted.size() + 399) / 400));
}

TEST_F(ScatterPlanTest, ImageOfOddSize_KeepsItsLastBytes) {
  const std::vector<std::byte> before = Random(kBlock + 7);
  for (const uint64_t changed : {kBlock + 1, kBlock + 5, kBlock + 6}) {
    std::vector<std::byte> wanted = before;
    wanted[changed] ^= std::byte{1};
    const HostAllocation image = Have(before);
    ScatterPlan plan(FromPool());
    ASSERT_TRUE(Add(plan, image, 0, wanted).ok());
    plan.Scatter(image, 1);
    EXPECT_TRUE(Read(image) == wanted) << changed;
  }
}

TEST_F(ScatterPlanTest, PoolWithoutRoom_FailsTheAdd) {
  const std::vector<std::byte> before = Random(kGranuleBytes);
  std::vector<std::byte> wanted = before;
  wanted[5] ^= std::byte{1};
  const HostAllocation image = Have(before);
  ScatterPlan plan(
      [](uint64_t) -> absl::StatusOr<HostAllocation> { return absl::ResourceExhaustedError("full"); });
  EXPECT_EQ(Add(plan, image, 0, wanted).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ScatterPlanTest, ChunksOfSeveralThreads_AreAllWritten) {
  constexpr int kThreads = 4;
  const std::vector<std::byte> before = Random(kThreads * kGranuleBytes);
  std::vector<std::byte> wanted = before;
  for (uint64_t at = 3; at < wanted.size(); at += 50) wanted[at] ^= std::byte{1};
  const HostAllocation image = Have(before);
  ScatterPlan plan(FromPool());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, offset = i * kGranuleBytes] {
        EXPECT_TRUE(Add(plan, image, offset, std::span(wanted).subspan(offset, kGranuleBytes)).ok());
      });
    }
  }
  plan.Scatter(image, kThreads);
  EXPECT_TRUE(Read(image) == wanted);
}

}  // namespace
}  // namespace tensorcast::scatter_plan_test
