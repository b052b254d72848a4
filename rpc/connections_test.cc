// Which peers a server's listener accepts, which it refuses with a reason, and that it never stops.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/connection_table.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::connections_test {
namespace {

using ::testing::HasSubstr;
using Stub = v1::GlobalStore::Stub;

const CallOptions kOnce{.retry_for = absl::ZeroDuration()};

// A server with its own options, and peers that connect to it.
class Connections : public ::testing::Test {
 protected:
  void SetUp() override {
    service_.bind_key = [](auto&&...) { return absl::OkStatus(); };
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit_), 0);
  }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit_), 0); }

  void Start(ServerOptions options) {
    if (options.listen.empty()) options.listen = {"127.0.0.1:0"};
    options.services = {&service_};
    auto started = Server::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  const std::string& address() const { return server_->addresses().front(); }

  // On a connection of its own: gRPC shares one among the channels of like arguments.
  absl::Status Call(const std::string& address, absl::Duration timeout = absl::Seconds(60)) {
    auto stub = v1::GlobalStore::NewStub(MakeChannel(address, {.max_message_bytes = next_++}));
    return CallUnary(*stub, &Stub::BindKey, Within(timeout), {}, kOnce).status();
  }
  absl::Status Call() { return Call(address()); }

  // To the first address, which is one of IPv4; connected as soon as it is in the listener's queue.
  UniqueFd Knock(UniqueFd socket = NewSocket()) const {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address().substr(address().rfind(':') + 1), &port));
    to.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return socket;
  }
  static UniqueFd ConnectTo(const std::string& address) {
    const absl::StatusOr<SocketAddress> to = ResolveAddress(*ParseHostPort(address));
    EXPECT_TRUE(to.ok()) << to.status();
    UniqueFd connection(socket(to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(connection.get(), to->get(), to->length), 0);
    return connection;
  }
  static UniqueFd KnockAt(const std::string& path) {
    UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const absl::StatusOr<sockaddr_un> to = UnixAddress(path);
    EXPECT_TRUE(to.ok()) << to.status();
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&*to), sizeof(*to)), 0);
    return connection;
  }
  static UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

  // Until the server closes the connection.
  static void AwaitEnd(int socket) {
    char ignored[512];
    while (recv(socket, ignored, sizeof(ignored), 0) > 0) {
    }
  }
  static UniqueFd OpenOne() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  static bool AwaitConnections(double count) {
    return testing::Eventually(
        [count] { return otel::testing::ReadGauge(otel::metrics::kRpcConnections.id(), {}) == count; });
  }
  void SetDescriptorLimit(rlim_t soft) {
    rlimit limit = limit_;
    limit.rlim_cur = soft;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  Executor executor_{{}};
  TestGlobalStore service_{&executor_};
  std::unique_ptr<Server> server_;
  rlimit limit_{};
  int next_ = kMaxMessageBytes;
};

TEST_F(Connections, ConnectionsBeyondLimit_AreRefusedWithReason) {
  otel::testing::RecordedTelemetry recorded;
  const testing::TempFolder folder;
  Start({.listen = {"unix:" + folder.File("rpc.sock")}, .max_connections = 2});
  UniqueFd first = KnockAt(folder.File("rpc.sock"));
  const UniqueFd second = KnockAt(folder.File("rpc.sock"));
  ASSERT_TRUE(AwaitConnections(2));
  const absl::Status refused = Call();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the server already has 2 connections, its limit"));
  EXPECT_GE(recorded.Sum(otel::metrics::kRpcConnectionsRefused.id(), {"limit"}), 1);
  first = UniqueFd();
  ASSERT_TRUE(AwaitConnections(1));
  EXPECT_TRUE(Call().ok());
}

// The peer with the admitted call came first, so that it would go if that made no difference.
TEST_F(Connections, OldestUnadmittedConnection_GivesWayAtLimit) {
  for (const char* address : {"127.0.0.1:0", "[::1]:0"}) {
    Start({.listen = {address}, .max_connections = 2});
    const auto peer = v1::GlobalStore::NewStub(MakeChannel(this->address(), {.max_message_bytes = next_++}));
    ASSERT_TRUE(CallUnary(*peer, &Stub::BindKey, Within(absl::Seconds(60)), {}, kOnce).ok());
    const UniqueFd unadmitted = ConnectTo(this->address());
    ASSERT_TRUE(AwaitConnections(2));
    EXPECT_TRUE(testing::Eventually([this] { return Call().ok(); }));
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(unadmitted.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char ignored[512];
    ssize_t got = 0;
    while ((got = recv(unadmitted.get(), ignored, sizeof(ignored), 0)) > 0) {
    }
    EXPECT_EQ(got, 0) << address << ": another one gave way: " << strerror(errno);
    server_.reset();
  }
}

TEST_F(Connections, LimitReachedAtPort_UnixSocketStillAccepts) {
  const testing::TempFolder folder;
  Start({.listen = {"127.0.0.1:0", "unix:" + folder.File("rpc.sock")}, .max_connections = 1});
  const auto peer = v1::GlobalStore::NewStub(MakeChannel(address(), {.max_message_bytes = next_++}));
  ASSERT_TRUE(CallUnary(*peer, &Stub::BindKey, Within(absl::Seconds(60)), {}, kOnce).ok());
  EXPECT_THAT(Call().message(), HasSubstr("the server already has 1 connections, its limit"));
  EXPECT_TRUE(Call("unix:" + folder.File("rpc.sock")).ok());
}

TEST_F(Connections, OnlyReservedDescriptorsLeft_ConnectionsAreRefused) {
  otel::testing::RecordedTelemetry recorded;
  Start({});
  std::vector<UniqueFd> used;
  SetDescriptorLimit(256);
  UniqueFd next;
  while (next = OpenOne(), !IsReserved(next.get(), DescriptorUser::kNetwork)) used.push_back(std::move(next));
  const absl::Status refused = Call();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the server has no free file descriptor"));
  EXPECT_GE(recorded.Sum(otel::metrics::kRpcConnectionsRefused.id(), {"descriptors"}), 1);
  used.clear();
  EXPECT_TRUE(Call().ok());
}

// gRPC's own listener never accepted again after this.
TEST_F(Connections, DescriptorsExhausted_ConnectionsAreAcceptedAgainLater) {
  Start({});
  std::vector<UniqueFd> visitors;
  for (int i = 0; i < 20; ++i) visitors.push_back(NewSocket());
  std::vector<UniqueFd> used;
  SetDescriptorLimit(256);
  while (UniqueFd next = OpenOne()) used.push_back(std::move(next));
  ASSERT_EQ(errno, EMFILE);
  for (UniqueFd& visitor : visitors) {
    visitor = Knock(std::move(visitor));
    AwaitEnd(visitor.get());
  }
  used.clear();
  visitors.clear();
  EXPECT_TRUE(Call().ok());
}

// The server may be without even the one that it held back: then they wait, and are served later. Those that
// it takes in the instant when descriptors come back may still be refused; none is forgotten.
TEST_F(Connections, NoDescriptorEvenToRefuse_ConnectionsWait) {
  otel::testing::RecordedTelemetry recorded;
  Start({});
  std::vector<UniqueFd> visitors;
  for (int i = 0; i < 3; ++i) visitors.push_back(NewSocket());
  const rlimit none{.rlim_cur = 0, .rlim_max = limit_.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (UniqueFd& visitor : visitors) visitor = Knock(std::move(visitor));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit_), 0);
  EXPECT_TRUE(testing::Eventually([&recorded] {
    return otel::testing::ReadGauge(otel::metrics::kRpcConnections.id(), {}) +
               recorded.Sum(otel::metrics::kRpcConnectionsRefused.id(), {"descriptors"}) ==
           3;
  }));
  EXPECT_TRUE(Call().ok());
}

TEST_F(Connections, OpenConnections_AreCounted) {
  Start({});
  {
    const UniqueFd one = Knock(), two = Knock(), three = Knock();
    EXPECT_TRUE(AwaitConnections(3));
  }
  EXPECT_TRUE(AwaitConnections(0));
}

// As where the kernel has no cookie for a socket: a pipe has none.
TEST_F(Connections, EndedConnectionsWithoutSocketCookie_AreNotCounted) {
  ConnectionTable table(2);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd first(ends[0]);
  const UniqueFd second(ends[1]);
  const UniqueFd third = OpenOne();
  table.Add(first.get());
  table.Add(third.get());
  EXPECT_TRUE(table.Full());
  first = UniqueFd();
  EXPECT_EQ(table.Count(), 1);
  const UniqueFd again = OpenOne();  // has the number of the first
  EXPECT_EQ(table.Count(), 1);
}

TEST_F(Connections, RefusedConnectionsThatStay_AreClosed) {
  Start({.max_connections = 0});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(Knock());
  for (const UniqueFd& one : silent) AwaitEnd(one.get());
  // Peers that connect when all of these are gone are told why again.
  EXPECT_TRUE(testing::Eventually([this] {
    return absl::StrContains(Call().message(), "the server already has 0 connections, its limit");
  }));
}

TEST_F(Connections, EveryKindOfListenAddress_AcceptsConnections) {
  Start({.listen = {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0", "*:0"}});
  for (const std::string& address : server_->addresses()) {
    const std::string port = address.substr(address.rfind(':'));
    EXPECT_NE(port, ":0");
    EXPECT_TRUE(Call("127.0.0.1" + port).ok()) << address;
  }
}

TEST_F(Connections, CheckHealth_FailsOnceServerIsGone) {
  Start({});
  const std::string asked = address();
  const absl::Status serves = CheckHealth(asked, absl::Seconds(60));
  EXPECT_TRUE(serves.ok()) << serves;
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(CheckHealth(asked, absl::Seconds(60))));
}

TEST_F(Connections, Port_CanBeReusedAtOnceButNotTwice) {
  Start({});
  const std::string same = address();
  for (int life = 0; life < 3; ++life) {
    EXPECT_TRUE(Call().ok());
    EXPECT_TRUE(absl::IsUnavailable(Server::Start({.listen = {same}}).status()));
    server_.reset();  // closes the connection from its side
    Start({.listen = {same}});
  }
}

TEST_F(Connections, InvalidAddress_IsRefused) {
  for (const char* address :
       {"", "foo", ":1", "127.0.0.1:99999", "127.0.0.1:x", "unix:", "nowhere.invalid:1"}) {
    const absl::Status refused = Server::Start({.listen = {address}}).status();
    EXPECT_FALSE(refused.ok()) << address;
    const bool is_unix = std::string_view(address) == "unix:";
    EXPECT_THAT(refused.message(), HasSubstr(is_unix ? "use unix socket" : "listen on ")) << address;
  }
}

TEST_F(Connections, UnixSocket_HasMode0600AndGoesWithServer) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/connections_test.", getpid(), ".sock");
  Start({.listen = {"unix:" + path}});
  EXPECT_TRUE(Call().ok());
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  server_->Shutdown(SteadyNow());
  EXPECT_FALSE(std::filesystem::exists(path));
}

// The disk tier locks its folder for life.
TEST_F(Connections, UnixSocketInLockedFolder_IsServed) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/connections_test.", getpid());
  std::filesystem::create_directory(folder);
  const UniqueFd locked(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(locked.get(), LOCK_EX | LOCK_NB), 0);
  std::ofstream(folder + "/rpc.sock.lock").close();  // of a process that was killed as it began
  Start({.listen = {"unix:" + folder + "/rpc.sock"}});
  EXPECT_TRUE(Call().ok());
  EXPECT_FALSE(std::filesystem::exists(folder + "/rpc.sock.lock"));
  server_.reset();
  EXPECT_TRUE(std::filesystem::remove(folder)) << "something is left in it";
}

TEST_F(Connections, UnixSocketWithGroup_BelongsToIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr gid_t kGroup = 12345;
  const std::string path = absl::StrCat(::testing::TempDir(), "/connections_test.", getpid(), ".sock");
  Start({.listen = {"unix:" + path}, .unix_groups = {kGroup}});
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_EQ(info.st_gid, kGroup);
}

// The thread that connects is of another user: the kernel tells a thread's.
TEST_F(Connections, ManyUnauthenticatedConnections_AreAllRefusedWithReason) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const testing::TempFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  SetDescriptorLimit(256);  // so that few can be told at a time
  Start({.listen = {"unix:" + folder.File("rpc.sock")}, .unix_groups = {12345, 12346}});
  int told = 0;
  std::thread unadmitted([&] {
    ASSERT_EQ(syscall(SYS_setresuid, -1, 65534, -1), 0);
    std::vector<UniqueFd> connections;
    for (int i = 0; i < 20; ++i) connections.push_back(KnockAt(folder.File("rpc.sock")));
    char first;
    for (const UniqueFd& one : connections) told += recv(one.get(), &first, 1, 0) == 1 ? 1 : 0;
  });
  unadmitted.join();
  // On a busy host some are told too late; without a place to wait in it was four.
  EXPECT_GE(told, 10) << "the others were closed without a word";
}

}  // namespace
}  // namespace tensorcast::rpc::connections_test
