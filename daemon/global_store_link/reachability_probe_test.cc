#include "daemon/global_store_link/reachability_probe.h"
#include "base/testing/eventually.h"

#include <gtest/gtest.h>

#include <atomic>

namespace tensorcast::daemon::reachability_probe_test {
namespace {

// A port with an answer that the test sets.
class ReachabilityProbeTest : public ::testing::Test {
 protected:
  // Waits until so many more checks have begun and all but the last have ended.
  void AwaitChecks(int more) {
    const int wanted = checks_ + more + 1;
    EXPECT_TRUE(tensorcast::testing::Eventually([&] { return checks_ >= wanted; }));
  }

  std::atomic<absl::StatusCode> answer_{absl::StatusCode::kOk};
  std::atomic<int> checks_{0};
  ReachabilityProbe port_{"here:1", absl::Milliseconds(1), [this](const std::string&) {
                            ++checks_;
                            return absl::Status(answer_, "said");
                          }};
};

TEST_F(ReachabilityProbeTest, NodeWithoutProbeAnswers_IsUnreachableUntilAnswered) {
  AwaitChecks(5);
  EXPECT_FALSE(port_.unreachable());
  answer_ = absl::StatusCode::kDeadlineExceeded;
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return port_.unreachable(); }));
  answer_ = absl::StatusCode::kOk;
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return !port_.unreachable(); }));
}

TEST_F(ReachabilityProbeTest, ErrorAnswer_CountsAsReachable) {
  answer_ = absl::StatusCode::kUnimplemented;
  AwaitChecks(10);
  EXPECT_FALSE(port_.unreachable());
}

}  // namespace
}  // namespace tensorcast::daemon::reachability_probe_test
