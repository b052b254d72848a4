#include "base/posix/process_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <limits>
#include <new>

namespace tensorcast {
namespace {

using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

TEST(ProcessLimits, OrdinaryOnesAreEnough) {
  EXPECT_TRUE(CheckProcessLimits({.who = "a test", .descriptors = 8, .threads = 1}).ok());
}

TEST(ProcessLimits, TooFewDescriptorsAreToldWithWhatIsNeeded) {
  const absl::Status status =
      CheckProcessLimits({.who = "a test", .descriptors = std::numeric_limits<int>::max()});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("a test needs 2147483647 before it has a single client"));
}

TEST(ProcessLimits, TooLittleAddressSpaceIsToldWithWhatIsNeeded) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map terabytes";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = rlim_t{64} << 30;
  if (limit.rlim_cur > before.rlim_max) GTEST_SKIP() << "the hard limit is lower";
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const absl::Status enough = CheckProcessLimits({.who = "a test", .memory_bytes = uint64_t{1} << 30});
  const absl::Status pools = CheckProcessLimits({.who = "a test", .memory_bytes = uint64_t{64} << 30});
  const absl::Status threads = CheckProcessLimits({.who = "a test", .threads = 1 << 20});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(enough.ok()) << enough;
  EXPECT_TRUE(absl::IsResourceExhausted(pools)) << pools;
  EXPECT_THAT(pools.message(), HasSubstr("the limit of address space is 65536 MiB"));
  EXPECT_TRUE(absl::IsResourceExhausted(threads)) << threads;
}

void AskForMemoryInVain() {
  ExitWhenOutOfMemory();
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_AS, &none);
  void* volatile kept = ::operator new(size_t{1} << 30);  // volatile: not optimised away
  ::operator delete(kept);
}

TEST(ProcessLimitsDeathTest, WhoIsRefusedMemoryEndsAndSaysSo) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have an allocator of their own";
  EXPECT_EXIT(AskForMemoryInVain(), testing::ExitedWithCode(kOutOfMemoryExitCode),
              "the system refuses this process more memory");
}

}  // namespace
}  // namespace tensorcast
