#include "transport/tcp/raw_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "transport/tcp/socket.h"

namespace tensorcast::transport::tcp {
namespace {

// A test that waits for longer fails, where it would hang.
constexpr timeval kGuard = {.tv_sec = 30, .tv_usec = 0};
constexpr int kGuardMs = 30000;

}  // namespace

RawPeer::RawPeer(UniqueFd socket) : socket_(std::move(socket)) {
  PCHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kGuard, sizeof(kGuard)) == 0);
}

RawPeer RawPeer::ConnectTo(const std::string& address) {
  const SocketAddress resolved = ResolveAddress(ParseHostPort(address).value()).value();
  UniqueFd socket(::socket(resolved.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  PCHECK(connect(socket.get(), resolved.get(), resolved.length) == 0);
  return RawPeer(std::move(socket));
}

void RawPeer::SendPiece(const Data& head, std::string_view piece) {
  SendBytes(absl::StrCat(EncodeFrame(head), piece));
}

void RawPeer::SendBytes(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return;  // the other end hung up, which is for the test to find out
    bytes.remove_prefix(sent);
  }
}

std::string RawPeer::ReadBytes(size_t bytes) {
  std::string read(bytes, '\0');
  size_t count = 0;
  while (count < bytes) {
    const ssize_t got = recv(socket_.get(), read.data() + count, bytes - count, 0);
    if (got <= 0) {
      EXPECT_FALSE(got < 0 && errno == EAGAIN) << "nothing came";
      break;
    }
    count += got;
  }
  read.resize(count);
  return read;
}

Frame RawPeer::Next() {
  std::string bytes;
  for (;;) {
    const absl::StatusOr<std::optional<DecodedFrame>> decoded = DecodeFrame(bytes);
    if (!decoded.ok()) ADD_FAILURE() << decoded.status();
    if (!decoded.ok()) return Bye{};
    if (decoded->has_value()) return (*decoded)->frame;
    // Byte by byte, so that what follows the frame stays in the socket.
    const std::string next = ReadBytes(1);
    if (next.empty()) ADD_FAILURE() << "the connection ended where a frame was expected";
    if (next.empty()) return Bye{};
    bytes += next;
  }
}

bool RawPeer::IsClosed() {
  std::array<char, 65536> dropped;
  for (;;) {
    const ssize_t got = recv(socket_.get(), dropped.data(), dropped.size(), 0);
    if (got <= 0) return got == 0 || errno != EAGAIN;
  }
}

bool RawPeer::HasNothingToRead() const {
  char byte;
  return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

void RawPeer::Reset() {
  // To close a socket that lingers for no time sends a reset.
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  PCHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
  Close();
}

RawListener::RawListener() : socket_(ListenOn(ResolveAddress({"127.0.0.1", 0}).value()).value()) {
  address_ = FormatHostPort({"127.0.0.1", ListeningPort(socket_.get()).value()});
}

RawPeer RawListener::Accept() {
  pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, kGuardMs) != 1) ADD_FAILURE() << "no peer connected";
  UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(socket) << std::strerror(errno);
  return RawPeer(std::move(socket));
}

}  // namespace tensorcast::transport::tcp
