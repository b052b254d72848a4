#include "base/aside.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tensorcast::aside_test {
namespace {

TEST(Aside, RunAside_ReturnsResultOfWork) {
  const absl::StatusOr<int> result = RunAside<int>(RequestContext(), "count", [] { return 3; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*result, 3);
}

TEST(Aside, RunAsideWithHangingWork_ReturnsWhenCancelled) {
  const auto hangs = std::make_shared<absl::Notification>();
  const auto begun = std::make_shared<absl::Notification>();
  const RequestContext context;
  std::thread canceller([&] {
    begun->WaitForNotification();
    context.cancellation.Cancel();
  });
  const absl::StatusOr<int> result = RunAside<int>(context, "read a file", [begun, hangs] {
    begun->Notify();
    hangs->WaitForNotification();
    return 1;
  });
  canceller.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled) << result.status();
  hangs->Notify();
}

TEST(Aside, RunAsideWithSlowWork_ReportsSlowAndRecovered) {
  const auto hangs = std::make_shared<absl::Notification>();
  std::vector<bool> told;
  const absl::StatusOr<int> result = RunAside<int>(
      RequestContext(), "read a file",
      [hangs] {
        hangs->WaitForNotification();
        return 1;
      },
      [&](bool slow) {
        told.push_back(slow);
        if (slow) hangs->Notify();
      });
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
}

TEST(Aside, AbandonedWork_IsLimitedAndForgottenAtItsEnd) {
  const auto hangs = std::make_shared<absl::Notification>();
  const auto hang = [&] {
    const RequestContext context;
    return RunAside<int>(context, "read a file",
                         [context, hangs] {
                           context.cancellation.Cancel();
                           hangs->WaitForNotification();
                           return 1;
                         })
        .status();
  };
  absl::Status last;
  for (int i = 0; i < 1000 && !absl::IsResourceExhausted(last); ++i) last = hang();
  EXPECT_EQ(last.code(), absl::StatusCode::kResourceExhausted) << last;
  hangs->Notify();
  absl::Status again;
  do {
    again = RunAside<int>(RequestContext(), "read a file", [] { return 1; }).status();
  } while (absl::IsResourceExhausted(again));
  EXPECT_TRUE(again.ok()) << again;
}

}  // namespace
}  // namespace tensorcast::aside_test
