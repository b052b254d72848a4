#include "daemon/sources/peer_pools.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/posix/unix_socket.h"
#include "base/testing/temp_folder.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

TEST(SomebodyListens, AlsoWhereTheQueueOfThoseWhoConnectIsFull) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.path() + "/handles.sock";
  EXPECT_FALSE(SomebodyListens(path));

  UniqueFd listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = UnixAddress(path);
  ASSERT_TRUE(address.ok()) << address.status();
  const auto* raw = reinterpret_cast<const sockaddr*>(&*address);
  ASSERT_EQ(bind(listening.get(), raw, sizeof(*address)), 0);
  ASSERT_EQ(listen(listening.get(), 0), 0);
  EXPECT_TRUE(SomebodyListens(path));
  std::vector<UniqueFd> waiting;
  do {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), raw, sizeof(*address)) == 0);
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_TRUE(SomebodyListens(path));

  listening = UniqueFd();
  EXPECT_FALSE(SomebodyListens(path)) << "the file alone is nobody";
}

}  // namespace
}  // namespace tensorcast::daemon
