// TCP sockets as the transport wants them: none of them blocks, small frames leave at once, and a host that
// vanished is noticed. Stateless; thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::transport::tcp {

struct SocketOptions {
  // Gives up a peer when its kernel or process takes nothing for so long, also when nothing is sent.
  absl::Duration peer_timeout = absl::Seconds(10);
  std::string congestion_control;  // the kernel's name of one, "bbr"; empty: the host's choice
};

// Listens for connections. UNAVAILABLE when the address is taken, or none of this host's.
absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address);
// The port that it listens on.
absl::StatusOr<uint16_t> ListeningPort(int listener);

// Begins to connect. When the socket becomes writable, ConnectResult says what came of it.
absl::StatusOr<UniqueFd> StartConnecting(const SocketAddress& address, const SocketOptions& options);
absl::Status ConnectResult(int socket);

// Sets the options of a connection that was accepted.
absl::Status Configure(int socket, const SocketOptions& options);

}  // namespace tensorcast::transport::tcp
