// Socket addresses, and the network interface that holds one. Private to this folder.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/address.h"

namespace tensorcast::transport {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

uint16_t PortOf(const sockaddr_storage& address);

// The first address of the name. May ask a name server, so not for a progress thread. UNAVAILABLE when there
// is none.
absl::StatusOr<SocketAddress> Resolve(const HostPort& address);

// The name of the interface that has this address, "lo" for one; "" for wildcard addresses and where none has
// it.
std::string InterfaceOf(const SocketAddress& address);

}  // namespace tensorcast::transport
