#include "core/replicas/pool_space.h"

#include <thread>

#include "gtest/gtest.h"

namespace tensorcast::pool_space_test {
namespace {

constexpr Location kCpu{LocationKind::kCpu, 0};
constexpr Location kGpu{LocationKind::kGpu, 0};

TEST(PoolSpace, FreeingMemory_IsKnownPerPoolUntilItIsFree) {
  PoolSpace space;
  space.BeginFreeing(kCpu);
  space.BeginFreeing(kCpu);
  EXPECT_TRUE(space.IsFreeing(kCpu));
  EXPECT_FALSE(space.IsFreeing(kGpu));
  const uint64_t seen = space.events();
  space.EndFreeing(kCpu);
  EXPECT_TRUE(space.IsFreeing(kCpu));
  EXPECT_GT(space.events(), seen);
  space.EndFreeing(kCpu);
  EXPECT_FALSE(space.IsFreeing(kCpu));
}

TEST(PoolSpace, AwaitEvent_ReturnsAtOnceWhenEventPreceded) {
  PoolSpace space;
  const uint64_t seen = space.events();
  space.NoteChance();
  space.AwaitEvent(seen, RequestContext());
  EXPECT_NE(space.events(), seen);
}

TEST(PoolSpace, AwaitEvent_EndsWithEventOrCancellation) {
  PoolSpace space;
  const RequestContext context;
  const uint64_t seen = space.events();
  std::thread waiter([&] { space.AwaitEvent(seen, RequestContext()); });
  std::thread cancelled([&] { space.AwaitEvent(seen + 1, context); });
  space.NoteChance();
  waiter.join();
  context.cancellation.Cancel();
  cancelled.join();
}

TEST(PoolSpace, Evictions_AreCountedPerPool) {
  PoolSpace space;
  space.CountEviction(kGpu, "space");
  EXPECT_EQ(space.evictions(kGpu), 1u);
  EXPECT_EQ(space.evictions(kCpu), 0u);
}

}  // namespace
}  // namespace tensorcast::pool_space_test
