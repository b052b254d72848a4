// Clients in processes of their own: what the kernel tells the server when they die.
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>

#include "absl/log/check.h"
#include "base/testing/eventually.h"
#include "core/handles/handle_client.h"
#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::handle_process_test {
namespace {

constexpr uint64_t kPoolBytes = 2 * kGranuleBytes;

// A process that waits for a line of text, does `work` with it, reports one byte, and then stays until it is
// killed. To be made before this process has threads.
class Child {
 public:
  using Work = std::function<char(const std::string& text)>;

  explicit Child(const Work& work) {
    int to[2], from[2];
    CHECK_EQ(pipe(to), 0);
    CHECK_EQ(pipe(from), 0);
    pid_ = fork();
    CHECK_GE(pid_, 0);
    if (pid_ == 0) {
      close(to[1]);
      close(from[0]);
      Serve(work, to[0], from[1]);
    }
    to_ = UniqueFd(to[1]);
    from_ = UniqueFd(from[0]);
    close(to[0]);
    close(from[1]);
  }
  ~Child() { Kill(); }

  // What the work reported; 0 when the child died.
  char Do(const std::string& text) {
    CHECK_EQ(write(to_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    char report = 0;
    return read(from_.get(), &report, 1) == 1 ? report : '\0';
  }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void Serve(const Work& work, int in, int out) {
    char text[256];
    const ssize_t size = read(in, text, sizeof(text));
    const char report = size > 0 ? work(std::string(text, size)) : '\0';
    if (report == '\0' || write(out, &report, 1) != 1) _exit(1);
    while (true) pause();
  }

  pid_t pid_ = -1;
  UniqueFd to_, from_;
};

// Kept so that a child's lease lives as long as the child.
std::unique_ptr<ClaimedReplica> g_claimed;
std::unique_ptr<OfferedMemory> g_offered;

char ClaimAndKeep(const std::string& socket, const std::string& ticket) {
  auto claimed = ClaimedReplica::Claim(socket, ticket, Soon());
  if (!claimed.ok()) return absl::IsPermissionDenied(claimed.status()) ? 'p' : 'e';
  g_claimed = *std::move(claimed);
  return 'k';
}

class HandleProcess : public ::testing::Test {
 protected:
  std::shared_ptr<void> Hold() {
    ++held_;
    return std::shared_ptr<void>(nullptr, [this](void*) { --held_; });
  }
  std::string HostTicket() {
    return server_->IssueTicket(
        HostClaim(pool_.get(), kPoolBytes, {{kGranuleBytes, kGranuleBytes}}, kGranuleBytes, Hold()));
  }
  std::string DeviceTicket() { return server_->IssueTicket(DeviceClaim(Hold())); }
  void Start(std::vector<gid_t> groups = {}) {
    HandleServer::Options options;
    options.path = folder_.socket();
    options.allowed_groups = std::move(groups);
    auto server = HandleServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TestFolder folder_;
  UniqueFd pool_ = MakePool(kPoolBytes, PoolSeals());
  std::atomic<int> held_ = 0;
  std::unique_ptr<HandleServer> server_;
};

TEST_F(HandleProcess, KilledClientProcess_EndsItsLease) {
  Child child([&](const std::string& ticket) -> char {
    const char result = ClaimAndKeep(folder_.socket(), ticket);
    if (result != 'k') return result;
    const auto image = g_claimed->MapImage();
    return image.ok() && image->size() == kGranuleBytes && (*image)[kGranuleBytes - 1] == std::byte{1} ? 'k'
                                                                                                       : 'm';
  });
  Start();
  ASSERT_EQ(child.Do(HostTicket()), 'k');
  EXPECT_EQ(server_->leases(), 1);
  child.Kill();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
}

TEST_F(HandleProcess, ClientProcess_CannotWriteThePool) {
  Child child([&](const std::string& ticket) -> char {
    if (ClaimAndKeep(folder_.socket(), ticket) != 'k') return 'e';
    const int fd = g_claimed->fds().front().get();
    if (mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 'w';
    if (pwrite(fd, "x", 1, 0) == 1) return 'w';
    return ftruncate(fd, 0) == 0 ? 't' : 'k';
  });
  Start();
  EXPECT_EQ(child.Do(HostTicket()), 'k');
}

TEST_F(HandleProcess, DeviceMemory_IsHeldUntilTheClientProcessIsGone) {
  Child child([&](const std::string& ticket) -> char {
    const char result = ClaimAndKeep(folder_.socket(), ticket);
    if (!g_claimed->AnnounceOpening().ok()) return 'o';
    g_claimed.reset();  // closes the connection without CLOSED
    return result;
  });
  Start();
  ASSERT_EQ(child.Do(DeviceTicket()), 'k');
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(server_->leases(), 1);
  EXPECT_EQ(held_, 1);
  child.Kill();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
}

TEST_F(HandleProcess, KilledClientProcess_ReleasesDeviceMemory) {
  Child child([&](const std::string& ticket) -> char {
    const char result = ClaimAndKeep(folder_.socket(), ticket);
    return g_claimed->AnnounceOpening().ok() ? result : 'o';
  });
  Start();
  ASSERT_EQ(child.Do(DeviceTicket()), 'k');
  EXPECT_EQ(server_->leases(), 1);
  child.Kill();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
}

TEST_F(HandleProcess, KilledClientProcess_LosesItsOffer) {
  const std::string token_file = folder_.path() + "/token";
  Child child([&](const std::string&) -> char {
    const UniqueFd memfd = MakePool(kGranuleBytes, OfferSeals());
    auto offered = OfferedMemory::OfferMemfd(folder_.socket(), memfd.get(), kGranuleBytes, Soon());
    if (!offered.ok()) return 'e';
    g_offered = *std::move(offered);
    return symlink(g_offered->token().c_str(), token_file.c_str()) == 0 ? 'k' : 'e';
  });
  Start();
  ASSERT_EQ(child.Do("offer"), 'k');
  const std::string token = std::filesystem::read_symlink(token_file).string();
  child.Kill();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(server_->TakeOffer(token).status().code(), absl::StatusCode::kNotFound);
}

// The rest needs to be root, to become another user.
constexpr uid_t kOtherUser = 54321;
constexpr gid_t kOtherGroup = 54322;
constexpr gid_t kSharedGroup = 54323;

char ClaimAsOtherUser(const std::string& socket, const std::string& ticket,
                      std::vector<gid_t> supplementary) {
  if (setgroups(supplementary.size(), supplementary.data()) != 0) return 's';
  if (setgid(kOtherGroup) != 0 || setuid(kOtherUser) != 0) return 's';
  return ClaimAndKeep(socket, ticket);
}

TEST_F(HandleProcess, OtherUser_IsRefusedDespiteFileMode) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  chmod(folder_.path().c_str(), 0755);
  Child child([&](const std::string& ticket) { return ClaimAsOtherUser(folder_.socket(), ticket, {}); });
  Start();
  chmod(folder_.socket().c_str(), 0666);
  EXPECT_EQ(child.Do(HostTicket()), 'p');
  EXPECT_EQ(server_->leases(), 0);
}

// Listens in another user's name until its process is killed.
std::unique_ptr<HandleServer> g_server;

TEST_F(HandleProcess, Claim_RefusesServerOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  chmod(folder_.path().c_str(), 0777);
  const std::string path = folder_.File("other_user.sock");
  Child other_user([&](const std::string&) -> char {
    if (setgroups(0, nullptr) != 0 || setgid(kOtherGroup) != 0 || setuid(kOtherUser) != 0) return 's';
    g_server = StartServer(path);
    return 'k';
  });
  ASSERT_EQ(other_user.Do("listen"), 'k');
  const std::vector<gid_t> no_groups, other_groups = {kOtherGroup};
  const auto claim = [&](const std::vector<gid_t>* allowed) {
    return ClaimedReplica::Claim(path, "no ticket", Soon(), Cancellation(), allowed).status().code();
  };
  EXPECT_EQ(claim(&no_groups), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(claim(&other_groups), absl::StatusCode::kNotFound) << "of the ticket: the server was spoken to";
  EXPECT_EQ(claim(nullptr), absl::StatusCode::kNotFound);
}

TEST_F(HandleProcess, MemberOfAllowedGroup_IsAccepted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  chmod(folder_.path().c_str(), 0755);
  Child by_supplementary([&](const std::string& ticket) {
    return ClaimAsOtherUser(folder_.socket(), ticket, {7, kSharedGroup});
  });
  Start({kSharedGroup});
  EXPECT_EQ(by_supplementary.Do(HostTicket()), 'k');
  EXPECT_EQ(server_->leases(), 1);
}

TEST_F(HandleProcess, SeveralAllowedGroups_AcceptMembersAndRefuseOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  chmod(folder_.path().c_str(), 0755);
  Child by_primary([&](const std::string& ticket) { return ClaimAsOtherUser(folder_.socket(), ticket, {}); });
  Child outsider([&](const std::string& ticket) -> char {
    if (setgroups(0, nullptr) != 0 || setgid(7) != 0 || setuid(kOtherUser) != 0) return 's';
    return ClaimAndKeep(folder_.socket(), ticket);
  });
  Start({kSharedGroup, kOtherGroup});
  EXPECT_EQ(by_primary.Do(HostTicket()), 'k');
  EXPECT_EQ(outsider.Do(HostTicket()), 'p');
}

}  // namespace
}  // namespace tensorcast::handle_process_test
