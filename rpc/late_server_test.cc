// A client in a process without a server, and a server in another process that starts after the client's
// first attempt. A separate binary, since gRPC's threads would always wait in a server of this process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/testing/temp_folder.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc {
namespace {

// A process that serves BindKey at `path` from when it is told to, until this goes.
class OtherProcess {
 public:
  explicit OtherProcess(const std::string& path) {
    int ends[2];
    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd told(ends[0]);
    tell_ = UniqueFd(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {
      tell_ = UniqueFd();
      Serve(path, told.get());
    }
  }
  ~OtherProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Begin() { ASSERT_EQ(write(tell_.get(), "x", 1), 1); }

 private:
  [[noreturn]] static void Serve(const std::string& path, int told) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte;
    if (read(told, &byte, 1) != 1) _exit(0);
    Executor executor{Executor::Options{}};
    TestGlobalStore service(&executor);
    service.bind_key = [](auto&&...) { return absl::OkStatus(); };
    const auto server = Server::Start({.listen = {absl::StrCat("unix:", path)}, .services = {&service}});
    CHECK_OK(server.status());
    while (true) pause();
  }

  pid_t pid_ = -1;
  UniqueFd tell_;
};

TEST(LateServer, ServerStartedBetweenRetries_IsReached) {
  // gRPC's own look at connections without a waiting call would find it, too, after a while.
  ASSERT_EQ(setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0", 1), 0);
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/server";
  OtherProcess other(path);
  const auto stub = v1::GlobalStore::NewStub(MakeChannel(absl::StrCat("unix:", path)));
  const RequestContext context = Within(absl::Seconds(60));
  bool begun = false;
  const absl::Status called =
      RetryUnavailable(context, {.retry_for = absl::Seconds(60)}, [&](const Attempt& attempt) {
        // By then one has been in vain.
        if (attempt.number == 2) other.Begin();
        begun = attempt.number >= 2;
        v1::BindKeyResponse response;
        ClientCall call(context, attempt);
        return call.Outcome(stub->BindKey(call.get(), {}, &response));
      });
  EXPECT_TRUE(called.ok()) << called;
  EXPECT_TRUE(begun);
}

}  // namespace
}  // namespace tensorcast::rpc
