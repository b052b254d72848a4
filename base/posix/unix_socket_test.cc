#include "base/posix/unix_socket.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/posix/unique_fd.h"
#include "gtest/gtest.h"

namespace tensorcast::unix_socket_test {
namespace {

struct SocketPair {
  SocketPair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    mine = UniqueFd(ends[0]);
    other = UniqueFd(ends[1]);
  }
  UniqueFd mine, other;
};

TEST(UnixAddress, PathWithZeroByte_IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(UnixAddress(std::string("/run/a\0b", 8)).status()));
}

TEST(CheckPeer, PeerOfSameUser_IsAccepted) {
  const SocketPair pair;
  EXPECT_EQ(CheckPeer(pair.mine.get(), {}), absl::OkStatus());
}

// In a container that maps no users every other user is seen as 65534, and so is the process itself.
TEST(CheckPeer, IdUnknownInUserNamespace_IsRefused) {
  const SocketPair pair;  // the kernel keeps the ids of the process that made it
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    const absl::StatusOr<ucred> peer = PeerCredentials(pair.mine.get());
    if (!peer.ok() || peer->uid != geteuid()) _exit(1);
    const absl::Status refused = CheckPeer(pair.mine.get(), {peer->gid});
    _exit(refused.code() == absl::StatusCode::kPermissionDenied ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "user namespaces cannot be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the peer is not seen as the own user; 2: it was let in";
}

}  // namespace
}  // namespace tensorcast::unix_socket_test
