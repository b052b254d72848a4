#include "core/ingest/receive_rate.h"

#include <gtest/gtest.h>

namespace tensorcast::receive_rate_test {
namespace {

TEST(ReceiveRate, BytesSinceFirstSource_GiveRate) {
  const SteadyTime start = SteadyTime() + absl::Hours(1);
  ReceiveRate rate;
  EXPECT_EQ(rate.MbitOf(1'000'000, start), 0u) << "it has no source";
  rate.Begin(start);
  rate.Begin(start + absl::Seconds(1));
  EXPECT_EQ(rate.MbitOf(1'000'000, start + absl::Milliseconds(49)), 0u) << "too early";
  EXPECT_EQ(rate.MbitOf(50'000'000, start + absl::Seconds(2)), 200u);
}

}  // namespace
}  // namespace tensorcast::receive_rate_test
