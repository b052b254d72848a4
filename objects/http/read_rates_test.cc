#include "objects/http/read_rates.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::objects::read_rates_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(ReadRates, ReadsOfOneServer_WaitForItsRateAndOthersDoNot) {
  ReadRates rates(/*all=*/0, /*of_origin=*/10 * kMiB);
  const SteadyTime begun = SteadyNow();
  EXPECT_TRUE(rates.Await({}, "https://a:443", kMiB, "read").ok());
  EXPECT_TRUE(rates.Await({}, "https://a:443", kMiB, "read").ok());
  EXPECT_GE(SteadyNow() - begun, absl::Milliseconds(50)) << "its first MiB is to be paid, but for a burst";
  RequestContext late;
  late.deadline = SteadyNow();
  EXPECT_TRUE(rates.Await(late, "https://b:443", kMiB, "read").ok());
  EXPECT_EQ(rates.Await(late, "https://a:443", kMiB, "read").code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ReadRates, ReadsOfAllServers_WaitForTheCommonRate) {
  ReadRates rates(/*all=*/10 * kMiB, /*of_origin=*/0);
  RequestContext late;
  late.deadline = SteadyNow();
  EXPECT_TRUE(rates.Await(late, "https://a:443", kMiB, "read").ok());
  EXPECT_FALSE(rates.Await(late, "https://b:443", kMiB, "read").ok());
}

TEST(ReadRates, CancelledRead_DoesNotWaitForItsTurn) {
  ReadRates rates(/*all=*/1, /*of_origin=*/0);
  EXPECT_TRUE(rates.Await({}, "https://a:443", kMiB, "read").ok());
  RequestContext context;
  context.cancellation.Cancel();
  EXPECT_EQ(rates.Await(context, "https://a:443", kMiB, "read").code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tensorcast::objects::read_rates_test
