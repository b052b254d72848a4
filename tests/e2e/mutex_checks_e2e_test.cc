// No process of ours checks the order in which gRPC locks its mutexes (rpc/foreign_mutexes).
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/steady_time.h"
#include "tests/e2e/e2e_test_base.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TENSORCAST_CANNOT_PRELOAD 1
#endif
#endif

namespace tensorcast {
namespace {

class MutexChecks : public E2eTest {
 protected:
  // Each process that begins from here on locks two mutexes in both orders when it ends, which ends it by a
  // signal where the order is checked, and then writes a line.
  void SetUp() override {
#ifdef TENSORCAST_CANNOT_PRELOAD
    GTEST_SKIP() << "AddressSanitizer's own library has to be loaded first";
#endif
    E2eTest::SetUp();
    lines_ = directory_->path() + "/lines";
    setenv("TENSORCAST_LOCK_ORDER_PROBE", lines_.c_str(), 1);
    setenv("LD_PRELOAD", TENSORCAST_LOCK_ORDER_PROBE_LIBRARY, 1);
  }
  void TearDown() override {
    unsetenv("LD_PRELOAD");
    unsetenv("TENSORCAST_LOCK_ORDER_PROBE");
    E2eTest::TearDown();
  }
  int Lines() const {
    std::ifstream file(lines_);
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  std::string lines_;
};

TEST_F(MutexChecks, StoreDaemonsAndClients_RunWithoutMutexChecks) {
  StartCluster();
  const CommandResult status = RunCommand({"status", "--daemon", cluster_->addresses(0).unix_socket});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_EQ(Lines(), 1) << "the client";
  clients_.clear();
  TC_ASSERT_OK(cluster_->Stop());
  EXPECT_EQ(Lines(), 4) << "a global store and two daemons";
}

// A program that has the C++ client library alone.
TEST_F(MutexChecks, ClientLibrary_TurnsMutexChecksOff) {
  StartCluster();
  TC_ASSERT_OK_AND_ASSIGN(
      const auto client,
      Process::Start({.argv = {TENSORCAST_PUT_CLIENT, cluster_->addresses(0).unix_socket, "k", "1", "0"},
                      .log_path = directory_->path() + "/client.log"}));
  TC_ASSERT_OK_AND_ASSIGN(const int code, client->Wait(SteadyNow() + kStepTimeout));
  EXPECT_EQ(code, 0) << FileTail(client->log_path(), 20);
  EXPECT_EQ(Lines(), 1);
}

TEST_F(MutexChecks, CommandWithoutCalls_KeepsMutexChecksOn) {
  // A command that makes no call: the library's default, without which the test above would show nothing.
  const CommandResult version = RunCommand({"--version"});
  EXPECT_NE(version.exit_code, 0) << version.output;
  EXPECT_EQ(Lines(), 0);
}

}  // namespace
}  // namespace tensorcast
