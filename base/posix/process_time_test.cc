#include "base/posix/process_time.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/testing/eventually.h"

namespace tensorcast::process_time_test {
namespace {

WallTime ElapsedOnce(const ProcessTime::Watch& watch, TimeUse use, absl::Duration min) {
  WallTime time;
  EXPECT_TRUE(testing::Eventually([&] {
    time = watch.Elapsed();
    return time[use] >= min;
  }));
  return time;
}

// A thread that computes on the CPU that this one is bound to, until it is destroyed.
class Burner {
 public:
  Burner()
      : thread_([this] {
          while (!stop_) {
          }
        }) {}
  ~Burner() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(ProcessTime, ThreadThatRuns_IsCountedAsWorking) {
  const ProcessTime::Watch watch(LimitedDirection::kReceive);
  const Burner burner;
  ElapsedOnce(watch, TimeUse::kWorking, absl::Milliseconds(50));
}

TEST(ProcessTime, ThreadsOnOneCpu_AreCountedAsWithoutCpu) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // what begins from here on inherits it
  {
    const ProcessTime::Watch watch(LimitedDirection::kReceive);
    const Burner first, second, third;
    const WallTime time = ElapsedOnce(watch, TimeUse::kNoCpu, absl::Milliseconds(200));
    EXPECT_LT(time[TimeUse::kStopped], time.whole / 2);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ProcessTime, StoppedProcess_IsCountedAsStopped) {
  const ProcessTime::Watch watch(LimitedDirection::kReceive);
  const pid_t self = getpid();
  // Stops this process, and lets it go on.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < 5; ++i) {
      kill(self, SIGSTOP);
      usleep(100'000);
      kill(self, SIGCONT);
      usleep(50'000);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const WallTime time = ElapsedOnce(watch, TimeUse::kStopped, absl::Milliseconds(300));
  EXPECT_LE(time[TimeUse::kStopped], time.whole);
}

TEST(ProcessTime, OverlappingHolds_CountOnce) {
  const ProcessTime::Watch watch(LimitedDirection::kSend);
  const SteadyTime now = SteadyNow();
  for (int i = 0; i < 3; ++i) {
    ProcessTime::Get().NoteHeld(LimitedDirection::kSend, now, now + absl::Milliseconds(30));
  }
  ProcessTime::Get().NoteHeld(LimitedDirection::kReceive, now, now + absl::Hours(1));
  const WallTime time = ElapsedOnce(watch, TimeUse::kLimiter, absl::Milliseconds(30));
  EXPECT_EQ(time[TimeUse::kLimiter], absl::Milliseconds(30));
}

}  // namespace
}  // namespace tensorcast::process_time_test
