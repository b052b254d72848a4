#include "cli/dashboard/token_socket.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/testing/no_threads.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::dashboard::token_socket_test {
namespace {

TEST(TokenSocket, EachQuestion_GetsANewAddress) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.path() + "/dashboard/1.sock";
  int made = 0;
  const auto socket = TokenSocket::Listen(path, [&] { return "address " + std::to_string(++made); });
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_EQ(AskForAddress(path).value_or(""), "address 1");
  EXPECT_EQ(AskForAddress(path).value_or(""), "address 2");
  struct stat found{};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u) << "for this user alone";
  EXPECT_EQ(TokenSocket::Listen(path, [] { return ""; }).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(TokenSocket, ListenWithoutThreads_IsAnError) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.path() + "/dashboard/1.sock";
  absl::Status listens;
  const bool tried = tensorcast::testing::WithoutThreads(
      [&] { listens = TokenSocket::Listen(path, [] { return "address"; }).status(); });
  if (!tried) GTEST_SKIP() << "the kernel does not let this test refuse threads";
  EXPECT_EQ(listens.code(), absl::StatusCode::kResourceExhausted) << listens;
  EXPECT_THAT(listens.message(), ::testing::HasSubstr(path));
}

TEST(TokenSocket, WithoutADashboard_ErrorSaysWhatToStart) {
  const tensorcast::testing::TempFolder folder;
  const absl::Status status = AskForAddress(folder.path() + "/none.sock").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("start a dashboard with `tensorcast dashboard`"));
}

}  // namespace
}  // namespace tensorcast::dashboard::token_socket_test
