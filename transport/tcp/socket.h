// Makes the transport's TCP sockets: they do not block, send small frames at once, and notice a host that has
// vanished. Stateless; thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::transport::tcp {

struct SocketOptions {
  // Closes the connection when the peer's process or kernel takes no bytes for this time, also while no bytes
  // are sent.
  absl::Duration peer_timeout = absl::Seconds(10);
  std::string congestion_control;  // the kernel's name of an algorithm, as "bbr"; empty: the host's default
};

// Listens for connections. UNAVAILABLE when the address is taken, or is not an address of this host.
absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address);
// The port that `listener` listens on.
absl::StatusOr<uint16_t> ListeningPort(int listener);

// Begins to connect. When the socket becomes writable, ConnectResult returns whether it is connected.
absl::StatusOr<UniqueFd> StartConnecting(const SocketAddress& address, const SocketOptions& options);
absl::Status ConnectResult(int socket);

// Sets the options of an accepted connection.
absl::Status Configure(int socket, const SocketOptions& options);

}  // namespace tensorcast::transport::tcp
