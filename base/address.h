// Addresses of servers as people write them, "host:port" and "unix:/path", and as sockets take them. Only
// ResolveAddresses and InterfaceOf ask the system anything. Stateless; thread-safe. Text that is not an
// address is INVALID_ARGUMENT with what is expected.
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
// The path in a unix address; empty for any other.
std::string SocketPath(std::string_view address);

// "10.0.0.1:7000", "node-a:7000", "[fd00::1]:7000". The port is a number of digits up to 65535; the
// host has at most kMaxHostBytes, so that an address with any port fits the 255 bytes that it has in
// messages.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

// Whether the host stands for every address of a machine: to be listened on, never to be connected to.
bool IsWildcard(const HostPort& address);
// Whether the host is this machine alone, by its address or as "localhost". Other names are not asked for.
bool IsLoopback(const HostPort& address);

// Whether `path` can be that of a unix socket: 1 to 107 bytes.
absl::Status CheckSocketPath(std::string_view path);

// What a server can listen on, and what can be connected to (the port is not 0, the host no wildcard).
absl::Status CheckListenAddress(std::string_view address);
absl::Status CheckServerAddress(std::string_view address);

// An IPv4 or IPv6 address and port, as bind and connect take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The addresses of the name, never none, the preferred one first; and that one alone. May ask a name server,
// and so block: not for a thread that others wait for. UNAVAILABLE when there is none.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(const HostPort& address);
absl::StatusOr<SocketAddress> ResolveAddress(const HostPort& address);

uint16_t PortOf(const sockaddr_storage& address);

// The name of the interface that has this address, "lo" for one; "" for wildcard addresses and where none has
// it.
std::string InterfaceOf(const SocketAddress& address);

}  // namespace tensorcast
