#include "core/ingest/staging_ring.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "core/memory/numa_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::staging_ring_test {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<HostPool> SmallPool(uint64_t bytes) {
  auto pool = HostPool::Create({.bytes = bytes, .use_huge_pages = false, .prefault_threads = 0});
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(StagingRing, StagingRing_BlocksUntilBufferIsReturned) {
  const auto pool = SmallPool(2 * kGranuleBytes);
  auto ring = StagingRing::Create(pool.get(), 1, 4096);
  ASSERT_TRUE(ring.ok());
  auto first = (*ring)->Acquire(RequestContext());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->Spans(100).front().size(), 100u);
  std::thread later([held = *std::move(first)]() mutable { held = StagingBuffer(); });
  EXPECT_TRUE((*ring)->Acquire(RequestContext()).ok());
  later.join();
}

TEST(StagingRing, StagingRingAcquire_EndsOnCancellationAndAtDeadline) {
  const auto pool = SmallPool(2 * kGranuleBytes);
  auto ring = StagingRing::Create(pool.get(), 1, 4096);
  ASSERT_TRUE(ring.ok());
  const auto held = (*ring)->Acquire(RequestContext());
  RequestContext context;
  std::thread canceller([&context] { context.cancellation.Cancel(); });
  EXPECT_EQ((*ring)->Acquire(context).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  context = RequestContext();
  context.deadline = SteadyNow() + absl::Milliseconds(1);
  EXPECT_EQ((*ring)->Acquire(context).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(StagingRing, StagingRingCreate_FailsWhenPoolIsTooSmall) {
  const auto pool = SmallPool(kGranuleBytes);
  const auto ring = StagingRing::Create(pool.get(), 2, 4096);
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(ring.status().message(), HasSubstr("2 staging buffers"));
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

TEST(StagingRing, StagingRing_PrefersBufferOnNumaNodeOfDevice) {
  // Two segments: one near node 0, one near none, since no host has that node.
  constexpr int kAbsent = 1000;
  auto pool = HostPool::Create({.bytes = 4 * kGranuleBytes,
                                .segment_bytes = 2 * kGranuleBytes,
                                .use_huge_pages = false,
                                .prefault_threads = 0,
                                .numa_nodes = {0, kAbsent}});
  ASSERT_TRUE(pool.ok());
  if (PreferredNumaNode((*pool)->base()) != 0) GTEST_SKIP() << "this process may place no memory";
  auto ring = StagingRing::Create(pool->get(), 4, 4096, {{5, 0}, {6, kAbsent}});
  ASSERT_TRUE(ring.ok());
  const auto is_near = [](const StagingBuffer& buffer) {
    return PreferredNumaNode(buffer.Spans(1).front().data()) == 0;
  };
  std::vector<StagingBuffer> held;
  for (const bool near : {true, true, false}) {
    held.push_back(*(*ring)->Acquire(RequestContext(), 5));
    EXPECT_EQ(is_near(held.back()), near);
  }
  held.erase(held.begin());
  // The one that came back last is for a caller without a device; then none near it is left.
  held.push_back(*(*ring)->Acquire(RequestContext()));
  EXPECT_TRUE(is_near(held.back()));
  EXPECT_FALSE(is_near(*(*ring)->Acquire(RequestContext(), 5)));
}

}  // namespace
}  // namespace tensorcast::staging_ring_test
