// Streams of bytes between two ends of a pair of sockets, in clear and encrypted.
#include "transport/tcp/byte_stream.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/time/clock.h"
#include "base/testing/eventually.h"
#include "security/testing/test_authority.h"

namespace tensorcast::transport::tcp::byte_stream_test {
namespace {

struct Ends {
  std::unique_ptr<security::testing::TestAuthority> authority;  // of encrypted ones
  std::unique_ptr<ByteStream> client;
  std::unique_ptr<ByteStream> server;
};

std::pair<UniqueFd, UniqueFd> SocketPair() {
  std::array<int, 2> ends{};
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends PlainEnds() {
  auto [client, server] = SocketPair();
  return {.authority = nullptr,
          .client = NewPlainStream(std::move(client)),
          .server = NewPlainStream(std::move(server))};
}

Ends TlsEnds(const std::shared_ptr<security::Identity>& client,
             const std::shared_ptr<security::Identity>& server, const TlsSession& session = {}) {
  auto [a, b] = SocketPair();
  return {.authority = nullptr,
          .client = NewTlsClientStream(std::move(a), client, server->self().name.ToString(), session).value(),
          .server = NewTlsServerStream(std::move(b), server).value()};
}

Ends TlsEnds() {
  auto authority = std::make_unique<security::testing::TestAuthority>();
  Ends ends = TlsEnds(authority->Load("node/a"), authority->Load("node/b"));
  ends.authority = std::move(authority);
  return ends;
}

iovec PartOf(std::string& bytes, size_t from = 0) { return {bytes.data() + from, bytes.size() - from}; }

// What can be read now.
std::string ReadAll(ByteStream& stream) {
  std::string all;
  std::string room(100000, '\0');
  while (true) {
    const iovec part = PartOf(room);
    const absl::StatusOr<size_t> bytes = stream.Read({&part, 1});
    EXPECT_EQ(bytes.status(), absl::OkStatus());
    if (!bytes.ok() || *bytes == 0) return all;
    all.append(room, 0, *bytes);
  }
}

// Both ends in turn, until they know each other.
void Introduce(Ends& ends) {
  for (int i = 0; i < 10; ++i) {
    ReadAll(*ends.client);
    ReadAll(*ends.server);
  }
}

std::string Counted(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
  return bytes;
}

class ByteStreamTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ends_ = GetParam() ? TlsEnds() : PlainEnds();
    Introduce(ends_);
  }
  Ends ends_;
};

TEST_P(ByteStreamTest, Write_KeepsOrderBeyondSocketBuffer) {
  std::string sent = Counted(5 << 20);
  std::string received;
  bool was_full = false;
  for (size_t done = 0; done < sent.size() || ends_.client->has_unsent();) {
    const iovec part = PartOf(sent, done);
    const absl::StatusOr<size_t> moved = ends_.client->Write({&part, 1});
    ASSERT_EQ(moved.status(), absl::OkStatus());
    done += *moved;
    // The end that waits for space is told, also when all was taken and only the stream still has it.
    if (ends_.client->has_unsent()) {
      EXPECT_NE(ends_.client->Events(/*has_output=*/false) & EPOLLOUT, 0u);
    }
    was_full = was_full || done < sent.size();
    received += ReadAll(*ends_.server);
  }
  received += ReadAll(*ends_.server);
  EXPECT_TRUE(was_full);
  EXPECT_TRUE(received == sent);
  EXPECT_FALSE(ends_.server->has_buffered());
}

TEST_P(ByteStreamTest, WrittenBytes_MayBeOverwrittenByCaller) {
  std::string sent = Counted(3 << 20);
  const std::string before = sent;
  size_t done = 0;
  while (true) {
    const iovec part = PartOf(sent, done);
    const size_t moved = ends_.client->Write({&part, 1}).value();
    if (moved == 0) break;
    done += moved;
  }
  ASSERT_GT(done, 0u);
  ASSERT_LT(done, sent.size());
  std::ranges::fill(sent, 'x');
  std::string received = ReadAll(*ends_.server);
  while (ends_.client->has_unsent()) {
    ASSERT_EQ(ends_.client->Write({}).value(), 0u);
    received += ReadAll(*ends_.server);
  }
  EXPECT_EQ(received.size(), done);
  EXPECT_TRUE(received == before.substr(0, received.size()));
}

TEST_P(ByteStreamTest, Read_FillsSeveralPartsAndReportsBufferedBytes) {
  std::string sent = Counted(40000);
  const iovec all = PartOf(sent);
  ASSERT_EQ(ends_.client->Write({&all, 1}).value(), sent.size());
  std::string first(7, '\0'), second(20000, '\0');
  const std::array<iovec, 2> parts = {PartOf(first), PartOf(second)};
  ASSERT_EQ(ends_.server->Read(parts).value(), first.size() + second.size());
  // What is not in the socket any more is the stream's to tell of.
  EXPECT_EQ(ends_.server->has_buffered(), GetParam());
  EXPECT_TRUE(first + second + ReadAll(*ends_.server) == sent);
  EXPECT_FALSE(ends_.server->has_buffered());
}

TEST_P(ByteStreamTest, BytesSentBeforeClose_CanBeRead) {
  std::string sent = Counted(50000);
  const iovec all = PartOf(sent);
  ASSERT_EQ(ends_.client->Write({&all, 1}).value(), sent.size());
  ends_.client.reset();
  std::string received(sent.size(), '\0');
  for (size_t done = 0; done < received.size();) {
    const iovec rest = PartOf(received, done);
    const absl::StatusOr<size_t> bytes = ends_.server->Read({&rest, 1});
    ASSERT_EQ(bytes.status(), absl::OkStatus());
    done += *bytes;
  }
  EXPECT_TRUE(received == sent);
  const iovec more = PartOf(received);
  EXPECT_EQ(ends_.server->Read({&more, 1}).status().code(), absl::StatusCode::kUnavailable);
}

// What becomes of a client that comes with the session of a connection before.
class TlsSessionTest : public ::testing::Test {
 protected:
  void Connect(const std::shared_ptr<security::Identity>& client) {
    client_ = client;
    context_ = client->ClientContext();
    Ends first = TlsEnds(client_, server_);
    (void)Outcome(first);
    session_ = first.client->session();
  }
  // How many connections of the client resumed a session.
  long Resumed() const { return SSL_CTX_sess_hits(context_.get()); }

  // What the server says of the client.
  static absl::Status Outcome(Ends& ends) {
    std::string room(100, '\0');
    const iovec part = PartOf(room);
    absl::Status status;
    for (int i = 0; i < 10; ++i) {
      (void)ends.client->Read({&part, 1});
      status.Update(ends.server->Read({&part, 1}).status());
    }
    return status;
  }

  const security::testing::TestAuthority authority_;
  const std::shared_ptr<security::Identity> server_ = authority_.Load("node/server");
  std::shared_ptr<security::Identity> client_;
  std::shared_ptr<SSL_CTX> context_;
  TlsSession session_;
};

TEST_F(TlsSessionTest, TlsSession_IsResumedByFurtherConnections) {
  Connect(authority_.Load("node/a"));
  ASSERT_NE(session_.session, nullptr);
  EXPECT_EQ(Resumed(), 0);
  for (int more = 1; more <= 3; ++more) {
    Ends ends = TlsEnds(client_, server_, session_);
    EXPECT_EQ(Outcome(ends), absl::OkStatus());
    EXPECT_EQ(Resumed(), more);
    EXPECT_EQ(ends.server->peer(), authority_.Uri("node/a"));
    EXPECT_EQ(ends.client->peer(), authority_.Uri("node/server"));
  }
}

TEST_F(TlsSessionTest, SessionResumption_RefusesNameDeniedLater) {
  Connect(authority_.Load("node/a"));
  ASSERT_NE(session_.session, nullptr);
  // Made while the server still takes its own tickets.
  Ends ends = TlsEnds(client_, server_, session_);
  authority_.Deny("node/a");
  ASSERT_TRUE(
      ::tensorcast::testing::Eventually([&] { return !server_->CheckName(client_->self().name).ok(); }));
  EXPECT_EQ(Outcome(ends).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Resumed(), 1);
  EXPECT_EQ(ends.server->peer(), "");
  // From then on it takes them no more.
  Ends later = TlsEnds(client_, server_, session_);
  EXPECT_FALSE(Outcome(later).ok());
}

TEST_F(TlsSessionTest, SessionResumption_RefusesExpiredCertificate) {
  // Long enough to connect in, however slow this machine is.
  for (absl::Duration good_for = absl::Seconds(2); session_.session == nullptr; good_for *= 2) {
    ASSERT_LT(good_for, absl::Minutes(1));
    const auto brief = security::Identity::Load(authority_.Issue("node/a", good_for));
    if (brief.ok()) Connect(*brief);
  }
  Ends ends = TlsEnds(client_, server_, session_);
  ASSERT_TRUE(::tensorcast::testing::Eventually([&] { return absl::Now() > client_->self().not_after; }));
  EXPECT_EQ(Outcome(ends).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Resumed(), 1);
  EXPECT_EQ(ends.server->peer(), "");
}

TEST_F(TlsSessionTest, SessionOfOtherServer_FallsBackToFullHandshake) {
  Connect(authority_.Load("node/a"));
  ASSERT_NE(session_.session, nullptr);
  Ends ends = TlsEnds(client_, authority_.Load("node/another"), session_);
  EXPECT_EQ(Outcome(ends), absl::OkStatus());
  EXPECT_EQ(Resumed(), 0);
  EXPECT_EQ(ends.client->peer(), authority_.Uri("node/another"));
}

TEST_F(TlsSessionTest, SessionOfEarlierFiles_FallsBackToFullHandshake) {
  Connect(security::Identity::Load(authority_.Issue("node/a"), absl::Milliseconds(10)).value());
  ASSERT_NE(session_.session, nullptr);
  authority_.Issue("node/a");
  ASSERT_TRUE(::tensorcast::testing::Eventually([&] { return client_->ClientContext() != context_; }));
  Ends ends = TlsEnds(client_, server_, session_);
  EXPECT_EQ(Outcome(ends), absl::OkStatus());
  EXPECT_EQ(SSL_CTX_sess_hits(client_->ClientContext().get()), 0);
}

INSTANTIATE_TEST_SUITE_P(Streams, ByteStreamTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace tensorcast::transport::tcp::byte_stream_test
