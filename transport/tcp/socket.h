// Makes the transport's TCP sockets. They do not block, send small frames at once (TCP_NODELAY), and detect a
// host that has vanished (keepalive, TCP_USER_TIMEOUT). Stateless; thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::transport::tcp {

struct SocketOptions {
  // A connection breaks if the peer takes no bytes, or does not answer keepalives, for this time. Limited
  // to the range from 1 s to a day.
  absl::Duration peer_timeout = absl::Seconds(10);
  std::string congestion_control;  // the kernel's name, such as "bbr"; empty: the host's default
};

// Listens for connections. UNAVAILABLE if the address is in use, or is not an address of this host.
absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address);
// The port that `listener` listens on.
absl::StatusOr<uint16_t> ListeningPort(int listener);

// Begins to connect. When the socket becomes writable, ConnectResult returns OK or the error.
absl::StatusOr<UniqueFd> StartConnecting(const SocketAddress& address, const SocketOptions& options);
absl::Status ConnectResult(int socket);

// Sets the options of an accepted connection.
absl::Status Configure(int socket, const SocketOptions& options);

}  // namespace tensorcast::transport::tcp
