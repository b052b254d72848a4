#include "tools/workshop/cluster/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace tensorcast {
namespace {

TEST(Process, ProcessThatCannotBeWatched_IsKilledAndReaped) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Without a log and a ready pipe, its descriptor is the only one that is opened.
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto process = Process::Start({.argv = {"/bin/sleep", "3600"}});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(process.status().code(), absl::StatusCode::kResourceExhausted) << process.status();
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD) << "it was killed and reaped";
}

}  // namespace
}  // namespace tensorcast
