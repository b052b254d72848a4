// Addresses of servers: parses the texts "host:port" and "unix:/path" and gives the form that sockets take.
// Only ResolveAddresses and InterfaceOf call the system. Stateless; thread-safe. Text that is not an address
// is INVALID_ARGUMENT; the message says what is expected.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

inline constexpr size_t kMaxHostBytes = 247;

bool IsUnixAddress(std::string_view address);
// The path in a unix address; empty for every other address.
std::string SocketPath(std::string_view address);

// "10.0.0.1:7000", "node-a:7000", "[fd00::1]:7000". The port is a number of digits up to 65535; the
// host has at most kMaxHostBytes, so that an address with any port fits the 255 bytes that it has in
// messages.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

// Whether the host stands for every address of a machine: a server may listen on it, a client cannot connect
// to it.
bool IsWildcard(const HostPort& address);
// Whether the host is a loopback address or "localhost". Looks up no name.
bool IsLoopback(const HostPort& address);

// Checks that `path` fits a unix socket: 1 to 107 bytes.
absl::Status CheckSocketPath(std::string_view path);

// The first checks an address to listen on. The second checks an address to connect to: port not 0, host not
// a wildcard.
absl::Status CheckListenAddress(std::string_view address);
absl::Status CheckServerAddress(std::string_view address);

// An IPv4 or IPv6 address and port, as bind and connect take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The first returns all addresses of the name, at least one, the preferred one first; the second only the
// preferred one. Both may ask a name server and block: do not call them on a thread that others wait for.
// UNAVAILABLE when the name has no address.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(const HostPort& address);
absl::StatusOr<SocketAddress> ResolveAddress(const HostPort& address);

uint16_t PortOf(const sockaddr_storage& address);

// The name of the interface that has this address, "lo" for a loopback one; "" for a wildcard address and for
// an address of no interface.
std::string InterfaceOf(const SocketAddress& address);

}  // namespace tensorcast
