#include "base/upkeep.h"

#include <gtest/gtest.h>

namespace tensorcast::upkeep_test {
namespace {

TEST(Upkeep, UpkeepTrace_SurvivesTraceparentAndIsNotSampled) {
  const TraceContext upkeep = NewUpkeepTrace();
  EXPECT_TRUE(upkeep.IsValid());
  EXPECT_FALSE(upkeep.IsSampled());
  const auto received = TraceContext::FromTraceparent(upkeep.ToTraceparent(), upkeep.trace_state);
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(IsUpkeep(*received));
  EXPECT_FALSE(received->IsUnstarted());
}

TEST(Upkeep, OtherTraces_AreNotUpkeep) {
  EXPECT_FALSE(IsUpkeep(TraceContext()));
  EXPECT_FALSE(IsUpkeep(TraceContext::NewRoot()));
  TraceContext other = NewUpkeepTrace();
  other.trace_state = "tensorcast=upkeeper";
  EXPECT_FALSE(IsUpkeep(other));
  other.trace_state = "tensorcast=upkeep,vendor=value";
  EXPECT_TRUE(IsUpkeep(other));
}

TEST(Upkeep, UpkeepContext_HasRequestIdAndDeadline) {
  const RequestContext context = UpkeepContext(absl::Hours(1));
  EXPECT_TRUE(IsUpkeep(context.trace));
  EXPECT_FALSE(context.request_id.empty());
  EXPECT_NE(context.deadline, SteadyTime::InfiniteFuture());
}

}  // namespace
}  // namespace tensorcast::upkeep_test
