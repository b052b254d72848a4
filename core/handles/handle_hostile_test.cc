// Peers that do not keep to the protocol: none may crash the server, take a descriptor from it, or hold up
// the others.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/handles/codec.h"
#include "core/handles/frame_io.h"
#include "core/handles/handle_client.h"
#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::handle_hostile_test {
namespace {

constexpr uint64_t kPoolBytes = 2 * kGranuleBytes;

class HostileHandlePeer : public ::testing::Test {
 protected:
  static bool Closed(int socket) {
    char byte;
    return recv(socket, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }

  UniqueFd Connect() { return RawConnect(folder_.socket()); }
  UniqueFd ConnectAndGreet() { return RawGreet(folder_.socket()); }

  void ExpectServes() {
    auto claimed = ClaimedReplica::Claim(folder_.socket(), Ticket(), Soon());
    EXPECT_TRUE(claimed.ok()) << claimed.status();
  }
  std::string Ticket() {
    return server_->IssueTicket(HostClaim(pool_.get(), kPoolBytes, {{0, kGranuleBytes}}, 4096));
  }

  TestFolder folder_;
  UniqueFd pool_ = MakePool(kPoolBytes, PoolSeals());
  std::unique_ptr<HandleServer> server_ = StartServer(folder_.socket());
};

TEST_F(HostileHandlePeer, RandomBytes_EndOnlyTheirConnection) {
  const int before = OpenDescriptors();
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    UniqueFd socket = random() % 2 == 0 ? Connect() : ConnectAndGreet();
    std::string bytes(1 + random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (random() % 2 == 0) bytes.replace(0, std::min<size_t>(4, bytes.size()), std::string("\x09\0\0\0", 4));
    SendBytes(socket.get(), bytes, random() % 3 == 0 ? pool_.get() : -1);
  }
  ExpectServes();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
  EXPECT_EQ(server_->leases(), 0);
}

// The other way round: the server is the liar. It truncates the memory later, and reading it is a SIGBUS
// then.
TEST_F(HostileHandlePeer, Claim_RefusesPoolSegmentThatIsNotSealed) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW | F_SEAL_FUTURE_WRITE}) {
    const UniqueFd memory = MakePool(kPoolBytes, seals);
    const std::string ticket =
        server_->IssueTicket(HostClaim(memory.get(), kPoolBytes, {{0, kGranuleBytes}}, 4096));
    const auto claimed = ClaimedReplica::Claim(folder_.socket(), ticket, Soon());
    EXPECT_EQ(claimed.status().code(), absl::StatusCode::kInvalidArgument) << seals << claimed.status();
  }
  const UniqueFd file(open(folder_.File("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(file.get(), kPoolBytes), 0);
  const std::string ticket =
      server_->IssueTicket(HostClaim(file.get(), kPoolBytes, {{0, kGranuleBytes}}, 4096));
  EXPECT_FALSE(ClaimedReplica::Claim(folder_.socket(), ticket, Soon()).ok()) << "a file can be truncated";
  ExpectServes();
}

TEST_F(HostileHandlePeer, ErrorText_ComesWithoutControlCharacters) {
  const std::string path = folder_.File("liar.sock");
  const UniqueFd listening = RawListen(path, 1);
  std::thread liar([&] {
    const UniqueFd socket(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ReceiveFrame(socket.get());
    SendFrame(socket.get(), ErrorFrame{absl::InternalError("\x1B[2J")});
  });
  const auto claimed = ClaimedReplica::Claim(path, "ticket", Soon());
  liar.join();
  EXPECT_THAT(std::string(claimed.status().message()), ::testing::HasSubstr("\\x1b[2J"));
}

TEST_F(HostileHandlePeer, OtherProtocol_IsRefusedWithError) {
  UniqueFd socket = Connect();
  SendBytes(socket.get(), std::string("\x09\0\0\0\x01GET / HT", 13));
  EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(testing::Eventually([&] { return Closed(socket.get()); }));
}

TEST_F(HostileHandlePeer, OversizedFrame_IsRefusedBeforeItIsRead) {
  UniqueFd socket = ConnectAndGreet();
  SendBytes(socket.get(), std::string("\x01\x10\0\0", 4));
  EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostileHandlePeer, FrameOutOfTurn_IsRefused) {
  const Frame frames[] = {ClaimFrame{"x"},   OfferFrame{1, std::nullopt},
                          ClosedFrame{},     HelloAckFrame{1},
                          OfferedFrame{"x"}, ErrorFrame{absl::InternalError("x")},
                          HandlesFrame{},    DescriptorsFrame{},
                          FollowFrame{},     HaveFrame{},
                          HaveEndFrame{},    OfferFilesFrame{1}};
  for (const Frame& frame : frames) {
    UniqueFd socket = Connect();
    SendFrame(socket.get(), frame);
    EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument)
        << FrameName(frame) << " first";
  }
  for (const Frame& frame :
       {Frame(HelloFrame{}), Frame(ClosedFrame{}), Frame(HandlesFrame{}), Frame(FollowFrame{})}) {
    UniqueFd socket = ConnectAndGreet();
    SendFrame(socket.get(), frame);
    EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument)
        << FrameName(frame) << " second";
  }
}

TEST_F(HostileHandlePeer, ProtocolError_EndsHostLease) {
  for (const Frame& of_device_memory : {Frame(ClosedFrame{}), Frame(OpeningFrame{})}) {
    UniqueFd socket = ConnectAndGreet();
    SendFrame(socket.get(), ClaimFrame{Ticket()});
    EXPECT_TRUE(ReceiveFrame(socket.get()).has_value());
    EXPECT_EQ(server_->leases(), 1);
    SendFrame(socket.get(), of_device_memory);
    EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  }
}

TEST_F(HostileHandlePeer, HelloOfAnotherVersion_IsRefusedByName) {
  for (const uint16_t version : {kHandleProtocolVersion - 1, kHandleProtocolVersion + 1}) {
    UniqueFd other = Connect();
    SendFrame(other.get(), HelloFrame{version});
    const auto refusal = ReceiveFrame(other.get());
    ASSERT_EQ(ErrorOf(refusal), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(std::get<ErrorFrame>(*refusal).status.message()),
                ::testing::HasSubstr(absl::StrCat("speaks version ", version)));
  }
}

TEST_F(HostileHandlePeer, UnrequestedDescriptors_AreClosed) {
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    UniqueFd socket = Connect();
    SendFrame(socket.get(), HelloFrame{}, pool_.get());
    EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument);
    UniqueFd second = ConnectAndGreet();
    SendFrame(second.get(), OfferFrame{1, IpcHandle{"G", "x", 1}}, pool_.get());
    EXPECT_EQ(ErrorOf(ReceiveFrame(second.get())), absl::StatusCode::kInvalidArgument);
    UniqueFd third = ConnectAndGreet();
    SendFrame(third.get(), OfferFrame{1, std::nullopt});
    EXPECT_EQ(ErrorOf(ReceiveFrame(third.get())), absl::StatusCode::kInvalidArgument)
        << "a memfd without a descriptor";
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HostileHandlePeer, SeveralDescriptors_AreRefusedAndClosed) {
  const int before = OpenDescriptors();
  for (const int count : {2, 16, 40}) {
    UniqueFd socket = ConnectAndGreet();
    const std::string bytes = *EncodeFrame(OfferFrame{1, std::nullopt});
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (int i = 0; i < count; ++i) reinterpret_cast<int*>(CMSG_DATA(header))[i] = pool_.get();
    ASSERT_GT(sendmsg(socket.get(), &message, 0), 0);
    EXPECT_EQ(ErrorOf(ReceiveFrame(socket.get())), absl::StatusCode::kInvalidArgument) << count;
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HostileHandlePeer, FilesThatTheClientMayNotRead_AreRefused) {
  const int before = OpenDescriptors();
  const std::string path = folder_.File("file");
  for (const int flags : {O_PATH, O_WRONLY | O_CREAT}) {
    const UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0600));
    const UniqueFd folder(open(folder_.path().c_str(), O_PATH | O_CLOEXEC));
    const int fd = file ? file.get() : folder.get();
    EXPECT_EQ(OfferedMemory::OfferFiles(folder_.socket(), {&fd, 1}, Soon()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << flags;
  }
  ExpectServes();
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HostileHandlePeer, OfferedFilesWithAnotherNumberOfDescriptors_AreRefused) {
  using Sent = std::vector<std::pair<Frame, size_t>>;  // each with so many descriptors
  constexpr size_t kMax = kMaxFrameDescriptors;
  const Sent conversations[] = {
      {{OfferFilesFrame{1}, 0}},
      {{OfferFilesFrame{1}, 2}},
      {{OfferFilesFrame{kMax + 1}, 1}},
      {{OfferFilesFrame{kMax + 1}, kMax}, {DescriptorsFrame{}, 0}},
      {{OfferFilesFrame{kMax + 1}, kMax}, {DescriptorsFrame{}, 2}},
      {{OfferFilesFrame{kMax + 1}, kMax}, {ClosedFrame{}, 1}},
      {{OfferFilesFrame{1}, 1}, {DescriptorsFrame{}, 1}},
      {{DescriptorsFrame{}, 1}},
  };
  const int before = OpenDescriptors();
  for (const Sent& conversation : conversations) {
    UniqueFd socket = ConnectAndGreet();
    for (const auto& [frame, count] : conversation) {
      ASSERT_TRUE(SendSome(socket.get(), *EncodeFrame(frame), std::vector<int>(count, pool_.get())).ok());
    }
    std::optional<Frame> answer = ReceiveFrame(socket.get());
    if (answer && std::holds_alternative<OfferedFrame>(*answer)) answer = ReceiveFrame(socket.get());
    EXPECT_EQ(ErrorOf(answer), absl::StatusCode::kInvalidArgument) << FrameName(conversation.front().first);
  }
  ExpectServes();
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HostileHandlePeer, FrameSentByteByByte_IsDecoded) {
  UniqueFd socket = Connect();
  const std::string bytes = *EncodeFrame(HelloFrame{});
  for (const char& byte : bytes) SendBytes(socket.get(), std::string_view(&byte, 1));
  const auto answer = ReceiveFrame(socket.get());
  EXPECT_TRUE(answer && std::holds_alternative<HelloAckFrame>(*answer));
}

TEST_F(HostileHandlePeer, SilentPeer_IsClosedAndIdleLeaseIsKept) {
  server_.reset();
  HandleServer::Options options;
  options.path = folder_.socket();
  options.exchange_timeout = absl::Milliseconds(200);
  server_ = *HandleServer::Start(options);
  auto claimed = ClaimedReplica::Claim(folder_.socket(), Ticket(), Soon());
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  UniqueFd silent = Connect();
  UniqueFd half_way = ConnectAndGreet();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 1; }));
  EXPECT_TRUE(Closed(silent.get()));
  EXPECT_TRUE(Closed(half_way.get()));
  EXPECT_FALSE((*claimed)->lost());
  EXPECT_EQ(server_->leases(), 1);
}

TEST_F(HostileHandlePeer, ClientThatDoesNotReadItsAnswer_LosesItsLease) {
  server_.reset();
  HandleServer::Options options;
  options.path = folder_.socket();
  options.exchange_timeout = absl::Milliseconds(200);
  server_ = *HandleServer::Start(options);
  const std::string ticket = server_->IssueTicket(
      HostClaim(pool_.get(), kPoolBytes, std::vector<Extent>(500'000, {0, kGranuleBytes}), 4096));
  UniqueFd socket = ConnectAndGreet();
  SendFrame(socket.get(), ClaimFrame{ticket});
  EXPECT_TRUE(testing::Eventually([&] { return server_->tickets() == 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
}

TEST_F(HostileHandlePeer, SilentServer_ClientGivesUpAtItsDeadline) {
  const std::string path = folder_.path() + "/mute.sock";
  const UniqueFd listener = RawListen(path, 0);
  ASSERT_TRUE(listener);
  const auto claim = [&] {
    return ClaimedReplica::Claim(path, "x", SteadyNow() + absl::Milliseconds(50)).status();
  };
  EXPECT_EQ(claim().code(), absl::StatusCode::kDeadlineExceeded);
  // The connection that was given up still fills the backlog: the next cannot even connect.
  EXPECT_EQ(claim().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(HostileHandlePeer, SilentServer_ClientGivesUpWhenCancelled) {
  const std::string path = folder_.path() + "/mute.sock";
  const UniqueFd listener = RawListen(path, 1);
  ASSERT_TRUE(listener);
  const Cancellation cancellation;
  std::thread canceller([&] {
    const UniqueFd accepted(accept(listener.get(), nullptr, nullptr));  // the client is there, and waits
    cancellation.Cancel();
  });
  const absl::Status status =
      ClaimedReplica::Claim(path, "x", SteadyTime::InfiniteFuture(), cancellation).status();
  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(HostileHandlePeer, WrongNumberOfDescriptors_IsRefusedByClient) {
  const Frame device = HandlesFrame{{"r", "a", 1, DeviceHandles{{"G", "x", 2}}}};
  const Frame file = HandlesFrame{{"r", "a", 1, FileHandles{4096}}};
  HostHandles two{.pool_id = "p", .segments = {{0, kGranuleBytes}, {1, kGranuleBytes}}, .extents = {}};
  const Frame host = HandlesFrame{{"r", "a", 1, two}};
  constexpr uint32_t kMax = kMaxFrameDescriptors;
  HostHandles many{.pool_id = "p", .segments = {}, .extents = {}};
  for (uint32_t i = 0; i < kMax + 1; ++i) many.segments.push_back({i, kGranuleBytes});
  const Frame large = HandlesFrame{{"r", "a", 1, many}};
  using Sent = std::vector<std::pair<Frame, size_t>>;  // each with so many descriptors
  const Sent conversations[] = {
      {{device, 1}},
      {{file, 0}},
      {{file, 2}},
      {{host, 0}},
      {{host, 1}},
      {{host, 3}},
      {{large, kMax - 1}},
      {{large, kMax}, {DescriptorsFrame{}, 0}},
      {{large, kMax}, {DescriptorsFrame{}, 2}},
      {{large, kMax}, {ClosedFrame{}, 1}},
  };
  const std::string path = folder_.path() + "/miscounting.sock";
  const int before = OpenDescriptors();
  for (const Sent& conversation : conversations) {
    const UniqueFd listener = RawListen(path, 1);
    ASSERT_TRUE(listener);
    std::thread server([&] {
      const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      EXPECT_TRUE(ReceiveFrame(peer.get()).has_value());  // HELLO
      SendFrame(peer.get(), HelloAckFrame{});
      EXPECT_TRUE(ReceiveFrame(peer.get()).has_value());  // CLAIM
      for (const auto& [frame, count] : conversation) {
        EXPECT_TRUE(SendSome(peer.get(), *EncodeFrame(frame), std::vector<int>(count, pool_.get())).ok());
      }
      EXPECT_FALSE(ReceiveFrame(peer.get()).has_value()) << "the client hangs up";
    });
    const absl::Status status = ClaimedReplica::Claim(path, "x", Soon()).status();
    server.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("descriptors instead of"));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HostileHandlePeer, InvalidServerReply_IsClientError) {
  const std::string path = folder_.path() + "/nonsense.sock";
  for (const std::string& reply :
       {std::string("HTTP/1.1 400"), std::string("\xff\xff\xff\xff", 4), std::string(),
        *EncodeFrame(ClosedFrame{}), *EncodeFrame(HelloAckFrame{9})}) {
    const UniqueFd listener = RawListen(path, 1);
    ASSERT_TRUE(listener);
    std::thread server([&] {
      const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      [[maybe_unused]] const ssize_t sent = send(peer.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
    });
    const absl::Status status = ClaimedReplica::Claim(path, "x", Soon()).status();
    server.join();
    EXPECT_TRUE(status.code() == absl::StatusCode::kInternal ||
                status.code() == absl::StatusCode::kUnavailable ||
                status.code() == absl::StatusCode::kFailedPrecondition)
        << status;
    if (absl::IsFailedPrecondition(status)) {
      EXPECT_THAT(std::string(status.message()),
                  ::testing::AnyOf(::testing::HasSubstr("speaks version"),
                                   ::testing::HasSubstr("instead of HELLO_ACK")));
    }
  }
}

}  // namespace
}  // namespace tensorcast::handle_hostile_test
