// Parses and checks addresses of servers: "host:port" and "unix:/path". Only ResolveAddress, ResolveAddresses
// and InterfaceOf call the system. Stateless; thread-safe. INVALID_ARGUMENT for a text that is not an
// address; the message says what is expected.
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

// Parses "10.0.0.1:7000", "node-a:7000" or "[fd00::1]:7000". The port is a decimal number from 0 to 65535.
// The host has at most kMaxHostBytes bytes. Checks only the form: the host may not exist.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

// Whether the host is a wildcard (every address of a machine). A client cannot connect to a wildcard.
bool IsWildcard(const HostPort& address);
// Whether the host is a loopback address or "localhost". Does not look up names.
bool IsLoopback(const HostPort& address);

// Checks that `path` fits a unix socket: 1 to 107 bytes.
absl::Status CheckSocketPath(std::string_view path);

// Checks an address to listen on: host:port or unix:/path.
absl::Status CheckListenAddress(std::string_view address);
// Checks an address to connect to, like CheckListenAddress; port 0 and a wildcard host are errors, too.
absl::Status CheckServerAddress(std::string_view address);

// An IPv4 or IPv6 address and port, in the form that bind and connect take.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// All addresses of the name, the preferred address first. UNAVAILABLE if the name has no address. May ask a
// name server and block.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(const HostPort& address);
// The preferred address of the name. Errors and blocking are as for ResolveAddresses.
absl::StatusOr<SocketAddress> ResolveAddress(const HostPort& address);

uint16_t PortOf(const sockaddr_storage& address);

// The name of the interface that has this address, such as "lo" for 127.0.0.1. Empty for a wildcard address,
// and if no interface has the address.
std::string InterfaceOf(const SocketAddress& address);

}  // namespace tensorcast
