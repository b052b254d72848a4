#include "base/start_thread.h"

#include <string>

#include "base/testing/no_threads.h"
#include "gtest/gtest.h"

namespace tensorcast::start_thread_test {
namespace {

TEST(StartThread, StartThread_RunsWork) {
  bool ran = false;
  absl::StatusOr<std::thread> thread = StartThread("count", [&] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_TRUE(ran);
}

TEST(StartThread, NoThreadLeft_IsAnErrorWithOperation) {
  absl::Status refused;
  bool ran = false;
  if (!testing::WithoutThreads([&] { refused = StartThread("count", [&] { ran = true; }).status(); })) {
    GTEST_SKIP() << "the kernel does not let this test refuse threads";
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(std::string(refused.message()).starts_with("count: no thread can be started (")) << refused;
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace tensorcast::start_thread_test
