#include "cli/commands/termination.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/synchronization/notification.h"

namespace tensorcast::cli {
namespace {

// A clean-up that the parent of the process can see.
constexpr char kCleanedUp[] = "cleaned up\n";
void CleanUp() { (void)!write(STDERR_FILENO, kCleanedUp, sizeof(kCleanedUp) - 1); }

// What a process does that is told to end once, and then again: in a process of its own.
[[noreturn]] void EndTwice(const std::string& leftover) {
  HandleSignals();
  RemoveWhenTerminatedAgain(leftover);
  CallWhenTerminatedAgain(CleanUp);
  absl::Notification cancelled;
  const auto registration = OnTerminationSignal().OnCancel([&] { cancelled.Notify(); });
  kill(getpid(), SIGTERM);
  cancelled.WaitForNotification();
  if (!std::filesystem::exists(leftover)) _exit(1);  // the first signal leaves it to the command
  kill(getpid(), SIGINT);
  while (true) pause();
}

[[noreturn]] void EndOnce() {
  HandleSignals();
  const RequestContext context = InterruptibleContext();
  absl::Notification cancelled;
  const auto registration = context.cancellation.OnCancel([&] { cancelled.Notify(); });
  kill(getpid(), SIGINT);
  cancelled.WaitForNotification();
  if (EndlessExitCode(absl::CancelledError("the watch ended")) != 130) _exit(1);
  _exit(Fail(absl::CancelledError("the transfer was cancelled")));
}

class TerminationDeathTest : public ::testing::Test {
 protected:
  TerminationDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(TerminationDeathTest, FirstSignal_CancelsOperationAndExitsWith130) {
  EXPECT_EXIT(EndOnce(), ::testing::ExitedWithCode(130), "tensorcast: CANCELLED: the transfer was cancelled");
}

TEST_F(TerminationDeathTest, SecondSignal_EndsProcessAndCleansUp) {
  const std::string leftover = testing::TempDir() + "/termination_test.sock";
  std::ofstream(leftover).close();
  EXPECT_EXIT(EndTwice(leftover), ::testing::ExitedWithCode(130), kCleanedUp);
  EXPECT_FALSE(std::filesystem::exists(leftover));
}

TEST(ExitCode, ExitCode_IsZeroOnlyForSuccess) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(ExitCode(absl::NotFoundError("there is no key m")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tensorcast: NOT_FOUND: there is no key m\n");
}

}  // namespace
}  // namespace tensorcast::cli
