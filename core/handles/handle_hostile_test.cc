// Peers that do not keep to the protocol: none may crash the server, take a descriptor from it, or hold up
// the others.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/handles/codec.h"
#include "core/handles/frame_io.h"
#include "core/handles/handle_client.h"
#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast {
namespace {

constexpr uint64_t kPoolBytes = 2 * kGranuleBytes;

class HostileHandlePeer : public ::testing::Test {
 protected:
  // Sends raw bytes, with descriptors, on a connection.
  static void Send(int socket, std::string_view bytes, int fd = -1) {
    EXPECT_EQ(*SendSome(socket, bytes, fd), bytes.size());
  }
  static void SendFrame(int socket, const Frame& frame, int fd = -1) {
    Send(socket, *EncodeFrame(frame), fd);
  }

  // The next frame that the server sends; nothing when it closed the connection.
  static std::optional<Frame> Receive(int socket) {
    FrameReader reader(kMaxServerFrameBytes);
    std::optional<Frame> frame;
    static_cast<void>(testing::Eventually([&] {
      auto incoming = reader.Read(socket);
      if (incoming.ok() && incoming->has_value()) frame = std::move((*incoming)->frame);
      return !incoming.ok() || frame.has_value() || reader.closed();
    }));
    return frame;
  }

  static bool Closed(int socket) {
    char byte;
    return recv(socket, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }

  UniqueFd Connect() { return RawConnect(folder_.socket()); }
  UniqueFd ConnectAndGreet() {
    UniqueFd socket = Connect();
    SendFrame(socket.get(), HelloFrame{});
    const auto answer = Receive(socket.get());
    EXPECT_TRUE(answer && std::holds_alternative<HelloAckFrame>(*answer));
    return socket;
  }

  static absl::StatusCode ErrorOf(const std::optional<Frame>& frame) {
    if (!frame || !std::holds_alternative<ErrorFrame>(*frame)) return absl::StatusCode::kOk;
    return std::get<ErrorFrame>(*frame).status.code();
  }

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

TEST_F(HostileHandlePeer, RandomBytesEndOnlyTheirOwnConnection) {
  const int before = OpenDescriptors();
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    UniqueFd socket = random() % 2 == 0 ? Connect() : ConnectAndGreet();
    std::string bytes(1 + random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (random() % 2 == 0) bytes.replace(0, std::min<size_t>(4, bytes.size()), std::string("\x09\0\0\0", 4));
    Send(socket.get(), bytes, random() % 3 == 0 ? pool_.get() : -1);
  }
  ExpectServes();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(server_->leases(), 0);
}

TEST_F(HostileHandlePeer, AnotherProtocolIsRefusedWithAReason) {
  UniqueFd socket = Connect();
  Send(socket.get(), std::string("\x09\0\0\0\x01GET / HT", 13));
  EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(testing::Eventually([&] { return Closed(socket.get()); }));
}

TEST_F(HostileHandlePeer, AFrameTooLargeIsRefusedBeforeItIsRead) {
  UniqueFd socket = ConnectAndGreet();
  Send(socket.get(), std::string("\x01\x10\0\0", 4));
  EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostileHandlePeer, FramesOutOfTurnAreRefused) {
  const Frame frames[] = {ClaimFrame{"x"},  OfferFrame{1, std::nullopt}, ClosedFrame{},
                          HelloAckFrame{1}, OfferedFrame{"x"},           ErrorFrame{absl::InternalError("x")},
                          HandlesFrame{}};
  for (const Frame& frame : frames) {
    UniqueFd socket = Connect();
    SendFrame(socket.get(), frame);
    EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument)
        << FrameName(frame) << " first";
  }
  for (const Frame& frame : {Frame(HelloFrame{}), Frame(ClosedFrame{}), Frame(HandlesFrame{})}) {
    UniqueFd socket = ConnectAndGreet();
    SendFrame(socket.get(), frame);
    EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument)
        << FrameName(frame) << " second";
  }
}

TEST_F(HostileHandlePeer, AHostLeaseEndsWhenItsHolderBreaksTheProtocol) {
  UniqueFd socket = ConnectAndGreet();
  SendFrame(socket.get(), ClaimFrame{Ticket()});
  EXPECT_TRUE(Receive(socket.get()).has_value());
  EXPECT_EQ(server_->leases(), 1);
  SendFrame(socket.get(), ClosedFrame{});  // only for device memory
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
}

TEST_F(HostileHandlePeer, VersionsAreAgreedOnWhereTheRangesMeetAndRefusedWhereTheyDoNot) {
  UniqueFd next = Connect();
  SendFrame(next.get(), HelloFrame{kHandleProtocolMax, kHandleProtocolMax + 1});
  const auto answer = Receive(next.get());
  ASSERT_TRUE(answer && std::holds_alternative<HelloAckFrame>(*answer));
  EXPECT_EQ(std::get<HelloAckFrame>(*answer).version, kHandleProtocolMax);

  UniqueFd too_new = Connect();
  SendFrame(too_new.get(), HelloFrame{kHandleProtocolMax + 1, kHandleProtocolMax + 2});
  EXPECT_EQ(ErrorOf(Receive(too_new.get())), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HostileHandlePeer, DescriptorsThatNobodyAskedForAreClosed) {
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    UniqueFd socket = Connect();
    SendFrame(socket.get(), HelloFrame{}, pool_.get());
    EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument);
    UniqueFd second = ConnectAndGreet();
    SendFrame(second.get(), OfferFrame{1, IpcHandle{"G", "x", 1}}, pool_.get());
    EXPECT_EQ(ErrorOf(Receive(second.get())), absl::StatusCode::kInvalidArgument);
    UniqueFd third = ConnectAndGreet();
    SendFrame(third.get(), OfferFrame{1, std::nullopt});
    EXPECT_EQ(ErrorOf(Receive(third.get())), absl::StatusCode::kInvalidArgument)
        << "a memfd without a descriptor";
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HostileHandlePeer, MoreThanOneDescriptorIsRefusedAndAllAreClosed) {
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
    EXPECT_EQ(ErrorOf(Receive(socket.get())), absl::StatusCode::kInvalidArgument) << count;
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HostileHandlePeer, AFrameThatArrivesByteByByteIsUnderstood) {
  UniqueFd socket = Connect();
  const std::string bytes = *EncodeFrame(HelloFrame{});
  for (const char& byte : bytes) Send(socket.get(), std::string_view(&byte, 1));
  const auto answer = Receive(socket.get());
  EXPECT_TRUE(answer && std::holds_alternative<HelloAckFrame>(*answer));
}

TEST_F(HostileHandlePeer, ASilentPeerIsClosedAndAnIdleLeaseIsNot) {
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

TEST_F(HostileHandlePeer, AClientThatDoesNotTakeItsAnswerLosesItsLease) {
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

TEST_F(HostileHandlePeer, AClientWhoseServerNeverAnswersGivesUpAtItsDeadline) {
  const std::string path = folder_.path() + "/mute.sock";
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  const auto claim = [&] {
    return ClaimedReplica::Claim(path, "x", SteadyNow() + absl::Milliseconds(50)).status();
  };
  EXPECT_EQ(claim().code(), absl::StatusCode::kDeadlineExceeded);
  // The connection that was given up still fills the backlog: the next cannot even connect.
  EXPECT_EQ(claim().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(HostileHandlePeer, AServerThatTalksNonsenseIsAnErrorForTheClient) {
  const std::string path = folder_.path() + "/nonsense.sock";
  for (const std::string& reply :
       {std::string("HTTP/1.1 400"), std::string("\xff\xff\xff\xff", 4), std::string(),
        *EncodeFrame(ClosedFrame{}), *EncodeFrame(HelloAckFrame{9})}) {
    unlink(path.c_str());
    UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path));
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
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
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("speaks versions"));
    }
  }
}

}  // namespace
}  // namespace tensorcast
