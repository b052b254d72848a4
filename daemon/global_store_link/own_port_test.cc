#include "daemon/global_store_link/own_port.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"

namespace tensorcast::daemon {
namespace {

// A port whose answer is set.
class OwnPortTest : public testing::Test {
 protected:
  // Waits until so many more checks have begun and all but the last have ended.
  void AwaitChecks(int more) {
    const int wanted = checks_ + more + 1;
    while (checks_ < wanted) absl::SleepFor(absl::Milliseconds(1));
  }

  std::atomic<absl::StatusCode> answer_{absl::StatusCode::kOk};
  std::atomic<int> checks_{0};
  OwnPort port_{"here:1", absl::Milliseconds(1), [this](const std::string&) {
                  ++checks_;
                  return absl::Status(answer_, "said");
                }};
};

TEST_F(OwnPortTest, IsUnreachableOnlyAfterSeveralChecksInARowThatNobodyAnswers) {
  AwaitChecks(5);
  EXPECT_FALSE(port_.unreachable());
  answer_ = absl::StatusCode::kDeadlineExceeded;
  while (!port_.unreachable()) absl::SleepFor(absl::Milliseconds(1));
  answer_ = absl::StatusCode::kOk;
  while (port_.unreachable()) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(OwnPortTest, AnErrorIsAnAnswer) {
  answer_ = absl::StatusCode::kUnimplemented;
  AwaitChecks(10);
  EXPECT_FALSE(port_.unreachable());
}

}  // namespace
}  // namespace tensorcast::daemon
