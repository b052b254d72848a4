// Puts of arrays by client processes that die, stop and share what room there is for them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

constexpr char kMib[] = "24";  // of each of the two tensors

class Puts : public E2eTest {
 protected:
  void StartOne(std::vector<std::string> settings) {
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    for (std::string& setting : settings) options.daemon_settings.push_back(std::move(setting));
    StartCluster(options);
  }

  absl::StatusOr<std::unique_ptr<Process>> StartPut(const std::string& key, int signal) {
    return Process::Start(
        {.argv = {TENSORCAST_PUT_CLIENT, cluster_->addresses(0).unix_socket, key, kMib, absl::StrCat(signal)},
         .log_path = directory_->path() + "/" + key + ".log",
         .ready_pipe = true});
  }
};

TEST_F(Puts, ClientStoppedDuringPut_LosesTurnAndRoomAtStallTimeout) {
  // Room for one put, and one turn.
  StartOne({"daemon.peer_timeout=1s", "daemon.put_rings=1MiB", "daemon.max_concurrent_ingests=1"});
  TC_ASSERT_OK_AND_ASSIGN(const auto stopped, StartPut("stopped", SIGSTOP));
  TC_ASSERT_OK(stopped->WaitReady(SteadyNow() + kStepTimeout).status());
  // Another one waits for room behind it, and gets it while the first is still stopped.
  TC_ASSERT_OK_AND_ASSIGN(const auto next, StartPut("next", 0));
  TC_ASSERT_OK_AND_ASSIGN(const int ended, next->Wait(SteadyNow() + kStepTimeout));
  EXPECT_EQ(ended, 0);
  TC_ASSERT_OK(stopped->Signal(SIGCONT));
  TC_ASSERT_OK_AND_ASSIGN(const int late, stopped->Wait(SteadyNow() + kStepTimeout));
  EXPECT_EQ(late, static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  std::ifstream log(directory_->path() + "/stopped.log");
  const std::string said{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(said.find("has filled nothing for 1s"), std::string::npos) << said;
  EXPECT_EQ(said.find("filled nothing"), said.rfind("filled nothing")) << "its cause is said twice: " << said;
  EXPECT_TRUE(absl::IsNotFound(client(0).ResolveKey(Context(), "stopped").status()));
}

TEST_F(Puts, DaemonRestartedDuringPut_PutBeginsAgain) {
  StartOne({});
  TC_ASSERT_OK_AND_ASSIGN(const auto put, StartPut("again", SIGSTOP));
  TC_ASSERT_OK(put->WaitReady(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(0).Wait(SteadyNow() + kStepTimeout).status());
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK(put->Signal(SIGCONT));
  TC_ASSERT_OK_AND_ASSIGN(const int ended, put->Wait(SteadyNow() + kStepTimeout));
  EXPECT_EQ(ended, 0);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "again"));
  EXPECT_TRUE(
      std::ranges::all_of(replica->Find("first")->host, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_TRUE(
      std::ranges::all_of(replica->Find("second")->host, [](std::byte b) { return b == std::byte{0}; }));
}

// A tensor that cannot be read in this process: to stream it would end the test.
TEST_F(Puts, TensorInSealedMemory_IsHandedOver) {
  StartOne({});
  constexpr size_t kBytes = (size_t{3} << 20) + 100;
  const UniqueFd memory(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string written(kBytes, 'w');
  ASSERT_EQ(write(memory.get(), written.data(), kBytes), static_cast<ssize_t>(kBytes));
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
  void* const mapped = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE, memory.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::vector<std::byte> ordinary(kBytes, std::byte{7});
  const client::PutTensor tensors[] = {
      {"ordinary", DType::kU8, {kBytes}, ordinary},
      {"sealed", DType::kU8, {kBytes}, {static_cast<std::byte*>(mapped), kBytes}},
      {"short", DType::kU8, {5}, std::span(ordinary).first(5)}};
  TC_ASSERT_OK(client(0).Put(Context(), tensors, {}, {.key = "sealed"}).status());
  munmap(mapped, kBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "sealed"));
  const auto all_are = [&](const char* name, std::byte value) {
    return std::ranges::all_of(replica->Find(name)->host, [&](std::byte b) { return b == value; });
  };
  EXPECT_TRUE(all_are("ordinary", std::byte{7}));
  EXPECT_TRUE(all_are("sealed", std::byte{'w'}));
  EXPECT_TRUE(all_are("short", std::byte{7}));
}

TEST_F(Puts, TensorOfAReplica_IsHandedOver) {
  StartOne({});
  constexpr size_t kBytes = (size_t{3} << 20) + 100;
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  const client::PutTensor first[] = {{"a", DType::kU8, {kBytes}, bytes}, {"b", DType::kU8, {kBytes}, bytes}};
  TC_ASSERT_OK(client(0).Put(Context(), first, {}, {.key = "first"}).status());
  for (const bool copy_on_write : {false, true}) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica,
                            client(0).Get(Context(), "first", {.copy_on_write = copy_on_write}));
    ASSERT_EQ(mprotect(const_cast<std::byte*>(replica->image().data()), replica->image().size(), PROT_NONE),
              0);
    const client::PutTensor again[] = {{"c", DType::kU8, {kBytes}, replica->Find("b")->host},
                                       {"d", DType::kU8, {kBytes}, bytes}};
    TC_ASSERT_OK(
        client(0).Put(Context(), again, {{"of", absl::StrCat(copy_on_write)}}, {.key = "again"}).status());
    TC_ASSERT_OK_AND_ASSIGN(const auto stored, client(0).Get(Context(), "again"));
    EXPECT_TRUE(std::ranges::equal(stored->Find("c")->host, bytes));
  }
}

TEST_F(Puts, TensorWrittenOverItsReplica_IsStoredAsWritten) {
  StartOne({});
  constexpr size_t kBytes = size_t{3} << 20;
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  const client::PutTensor first[] = {{"a", DType::kU8, {kBytes}, bytes}};
  TC_ASSERT_OK(client(0).Put(Context(), first, {}, {.key = "first"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "first", {.copy_on_write = true}));
  ASSERT_TRUE(replica->writable());
  const std::span<const std::byte> mine = replica->Find("a")->host;
  const_cast<std::byte&>(mine[kBytes / 2]) = std::byte{9};
  const client::PutTensor again[] = {{"a", DType::kU8, {kBytes}, mine}};
  TC_ASSERT_OK(client(0).Put(Context(), again, {}, {.key = "again"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto stored, client(0).Get(Context(), "again"));
  EXPECT_EQ(stored->Find("a")->host[kBytes / 2], std::byte{9});
  EXPECT_EQ(stored->Find("a")->host[0], std::byte{7});
}

TEST_F(Puts, SeveralPutsWithRoomForOne_AllSucceedInTurn) {
  StartOne({"daemon.put_rings=1MiB"});
  std::vector<std::unique_ptr<Process>> puts;
  for (int i = 0; i < 4; ++i) {
    TC_ASSERT_OK_AND_ASSIGN(puts.emplace_back(), StartPut(absl::StrCat("put-", i), 0));
  }
  for (const std::unique_ptr<Process>& put : puts) {
    TC_ASSERT_OK_AND_ASSIGN(const int ended, put->Wait(SteadyNow() + kStepTimeout));
    EXPECT_EQ(ended, 0);
  }
}

}  // namespace
}  // namespace tensorcast
