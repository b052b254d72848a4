#include "base/posix/process_limits.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <limits>
#include <new>
#include <vector>

namespace tensorcast::process_limits_test {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

TEST(ProcessLimits, OrdinaryProcessLimits_AreEnough) {
  EXPECT_TRUE(CheckProcessLimits({.who = "a test", .descriptors = 8, .threads = 1}).ok());
}

TEST(ProcessLimits, TooFewDescriptors_ErrorNamesRequiredNumber) {
  const absl::Status status =
      CheckProcessLimits({.who = "a test", .descriptors = std::numeric_limits<int>::max()});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("start a test: 2147483647 open files are needed"));
}

TEST(ProcessLimits, TooLittleAddressSpace_ErrorNamesLimit) {
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

TEST(ProcessLimitsDeathTest, OutOfMemory_EndsProcessWithMessage) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have an allocator of their own";
  EXPECT_EXIT(AskForMemoryInVain(), ::testing::ExitedWithCode(kOutOfMemoryExitCode),
              "the system has no more memory for this process");
}

// Sets the soft limit, and puts back what was.
class DescriptorLimits : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void SetSoftLimit(rlim_t soft) {
    rlimit limit = before_;
    limit.rlim_cur = soft;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_{};
};

UniqueFd OpenOne() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST_F(DescriptorLimits, RaiseDescriptorLimit_RaisesSoftToHardLimit) {
  SetSoftLimit(256);
  EXPECT_EQ(DescriptorLimit(), 256);
  ASSERT_TRUE(RaiseDescriptorLimit().ok());
  EXPECT_EQ(static_cast<rlim_t>(DescriptorLimit()), std::min<rlim_t>(before_.rlim_max, 1 << 20));
}

TEST_F(DescriptorLimits, DescriptorReserve_IsTheLastEighth) {
  SetSoftLimit(256);
  EXPECT_EQ(DescriptorReserve(), 32);
  EXPECT_FALSE(IsReserved(223, DescriptorUser::kOwnUser));
  EXPECT_TRUE(IsReserved(224, DescriptorUser::kOwnUser));
  const UniqueFd one = OpenOne();
  EXPECT_FALSE(IsReserved(one.get(), DescriptorUser::kNetwork));
}

TEST_F(DescriptorLimits, DescriptorReserve_GrowsFromOwnUserToLocalUserToNetwork) {
  SetSoftLimit(256);
  EXPECT_FALSE(IsReserved(207, DescriptorUser::kLocalUser));
  EXPECT_TRUE(IsReserved(208, DescriptorUser::kLocalUser));
  EXPECT_FALSE(IsReserved(191, DescriptorUser::kNetwork));
  EXPECT_TRUE(IsReserved(192, DescriptorUser::kNetwork));
}

TEST_F(DescriptorLimits, NoDescriptorLeft_SpareOneAcceptsConnection) {
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // and no name: the kernel gives one
  socklen_t length = sizeof(sa_family_t);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  length = sizeof(address);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);

  SetSoftLimit(64);
  SpareDescriptor spare;
  std::vector<UniqueFd> all;
  while (UniqueFd one = OpenOne()) all.push_back(std::move(one));
  ASSERT_EQ(accept4(listener.get(), nullptr, nullptr, 0), -1);
  ASSERT_EQ(errno, EMFILE);
  {
    const UniqueFd accepted = spare.Accept(listener.get());
    EXPECT_TRUE(accepted);
    EXPECT_FALSE(spare.Restore());  // not while the connection has it
  }
  EXPECT_TRUE(spare.Restore());
  EXPECT_FALSE(OpenOne());
}

}  // namespace
}  // namespace tensorcast::process_limits_test
