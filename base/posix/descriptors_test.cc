#include "base/posix/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <vector>

namespace tensorcast {
namespace {

// Sets the soft limit, and puts back what was.
class DescriptorLimits : public testing::Test {
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

TEST_F(DescriptorLimits, AreRaisedFromTheSoftToTheHardOne) {
  SetSoftLimit(256);
  EXPECT_EQ(DescriptorLimit(), 256);
  ASSERT_TRUE(RaiseDescriptorLimit().ok());
  EXPECT_EQ(static_cast<rlim_t>(DescriptorLimit()), std::min<rlim_t>(before_.rlim_max, 1 << 20));
}

TEST_F(DescriptorLimits, KeepTheLastEighthInReserve) {
  SetSoftLimit(256);
  EXPECT_EQ(DescriptorReserve(), 32);
  EXPECT_FALSE(IsReserved(223));
  EXPECT_TRUE(IsReserved(224));
  const UniqueFd one = OpenOne();
  EXPECT_FALSE(IsReserved(one.get()));
}

TEST_F(DescriptorLimits, ASpareOneAcceptsAConnectionWhenNoneIsLeft) {
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
}  // namespace tensorcast
