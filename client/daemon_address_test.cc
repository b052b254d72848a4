#include "client/daemon_address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::client::daemon_address_test {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  void Bind(int socket) const {
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(name.sun_path, sizeof(name.sun_path) - 1);
    ASSERT_EQ(bind(socket, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  }
  absl::Status Check() const { return CheckListener(absl::StrCat("unix:", path_), context_); }
  void ExpectNoDaemon() const {
    const absl::Status status = Check();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "tensorcast daemon")) << status;
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.File("daemon.sock");
  const RequestContext context_ = RequestContext::Background(absl::Seconds(20));
};

TEST_F(ListenerTest, CheckListener_FindsSocketOnceAProcessListens) {
  ExpectNoDaemon();
  const UniqueFd listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Bind(listening.get());
  ExpectNoDaemon();
  ASSERT_EQ(listen(listening.get(), 1), 0);
  EXPECT_TRUE(Check().ok());
  // Also when it accepts nothing, and many wait.
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Check().ok()) << i;
}

TEST_F(ListenerTest, FileInTheSocketsPlace_IsNotADaemon) {
  std::ofstream(path_) << "no socket";
  ExpectNoDaemon();
}

TEST_F(ListenerTest, CheckListener_FindsPortWithListeningProcess) {
  const UniqueFd listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  ASSERT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&name), size), 0);
  ASSERT_EQ(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  EXPECT_TRUE(absl::IsUnavailable(CheckListener(address, context_)));
  ASSERT_EQ(listen(listening.get(), 1), 0);
  EXPECT_TRUE(CheckListener(address, context_).ok());
}

TEST_F(ListenerTest, CancelledContext_EndsCheckListener) {
  context_.cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(CheckListener("192.0.2.1:9", context_)));
}

}  // namespace
}  // namespace tensorcast::client::daemon_address_test
