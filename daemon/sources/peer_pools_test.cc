#include "daemon/sources/peer_pools.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/posix/unix_socket.h"
#include "base/testing/temp_folder.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::peer_pools_test {
namespace {

TEST(SegmentMapping, Map_RefusesMemoryThatMayShrink) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW}) {
    const UniqueFd memory(memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
    ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
    EXPECT_EQ(SegmentMapping::Map(memory.get(), 4096).status().code(), absl::StatusCode::kInvalidArgument)
        << seals;
    ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE), 0);
    EXPECT_TRUE(SegmentMapping::Map(memory.get(), 4096).ok());
    EXPECT_FALSE(SegmentMapping::Map(memory.get(), 8192).ok()) << "more than there is";
  }
}

TEST(HasListener, FullQueueOfConnections_CountsAsListening) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.path() + "/handles.sock";
  EXPECT_FALSE(HasListener(path));

  UniqueFd listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = UnixAddress(path);
  ASSERT_TRUE(address.ok()) << address.status();
  const auto* raw = reinterpret_cast<const sockaddr*>(&*address);
  ASSERT_EQ(bind(listening.get(), raw, sizeof(*address)), 0);
  ASSERT_EQ(listen(listening.get(), 0), 0);
  EXPECT_TRUE(HasListener(path));
  std::vector<UniqueFd> waiting;
  do {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), raw, sizeof(*address)) == 0);
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_TRUE(HasListener(path));

  listening = UniqueFd();
  EXPECT_FALSE(HasListener(path)) << "the file alone does not listen";
}

}  // namespace
}  // namespace tensorcast::daemon::peer_pools_test
