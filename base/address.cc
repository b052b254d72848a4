#include "base/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr uint32_t kMaxPort = 65535;

absl::Status NotHostPort(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not host:port: ", why));
}

// Compares hosts alone: the addresses of interfaces have no ports.
bool SameHost(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

bool IsUnixAddress(std::string_view address) { return absl::StartsWith(address, kUnixPrefix); }

std::string SocketPath(std::string_view address) {
  return absl::ConsumePrefix(&address, kUnixPrefix) ? std::string(address) : std::string();
}

// The form is checked here, without a resolver. A name that passes may still not exist.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  // The last colon is in front of the port: an IPv6 host has colons of its own.
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return NotHostPort(text, "a host, a colon and a port are expected, as in node-a:7000");
  }
  const std::string_view digits = text.substr(colon + 1);
  uint32_t port = 0;
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &port) || port > kMaxPort) {
    return NotHostPort(text, absl::StrCat("a port is a number from 0 to ", kMaxPort));
  }
  std::string_view host = text.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (!brackets && absl::StrContains(host, ':')) {
    return NotHostPort(text, "write an IPv6 address in brackets, as in [::1]:7000, and do not write a URL");
  }
  // A URL or half of an IPv6 host would otherwise fail only in the resolver, with a message that does not
  // help.
  const bool blank = std::any_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isspace(c) || c == '/' || c == '[';
  });
  if (blank) return NotHostPort(text, "a host name cannot contain a space, '/' or '['");
  if (host.size() > kMaxHostBytes) {
    return NotHostPort(text, absl::StrCat("a host name has at most ", kMaxHostBytes, " bytes"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

std::string FormatHostPort(const HostPort& address) {
  return absl::StrContains(address.host, ':') ? absl::StrCat("[", address.host, "]:", address.port)
                                              : absl::StrCat(address.host, ":", address.port);
}

bool IsWildcard(const HostPort& address) {
  // Every way to write zeros: 0.0.0.0, 0, ::, 0:0:0:0:0:0:0:0, ::ffff:0.0.0.0.
  std::string_view host = address.host;
  if (absl::StartsWithIgnoreCase(host, "::ffff:")) host.remove_prefix(7);
  return host == "*" || host.find_first_not_of("0.:") == std::string_view::npos;
}

bool IsLoopback(const HostPort& address) {
  if (address.host == "localhost") return true;
  in_addr ipv4{};
  if (inet_pton(AF_INET, address.host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == IN_LOOPBACKNET;
  in6_addr ipv6{};
  return inet_pton(AF_INET6, address.host.c_str(), &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6);
}

absl::Status CheckSocketPath(std::string_view path) {
  // One byte of sun_path is for the zero that ends the path. A zero within it would cut the path, and one at
  // its front would name an abstract socket.
  constexpr size_t kMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kMax) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" has ", path.size(),
                                                   " bytes, and a unix socket's path has 1 to ", kMax,
                                                   " bytes; choose another path"));
  }
  if (const size_t nul = path.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path.substr(0, nul),
                                                   "\" is followed by a NUL byte, which a unix socket's path "
                                                   "cannot have; choose a path without NUL bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckListenAddress(std::string_view address) {
  if (IsUnixAddress(address)) return CheckSocketPath(SocketPath(address));
  return ParseHostPort(address).status();
}

absl::Status CheckServerAddress(std::string_view address) {
  if (IsUnixAddress(address)) return CheckSocketPath(SocketPath(address));
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(parsed.status().message(), "; write host:port or unix:/path"));
  }
  if (parsed->port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\": port 0 cannot be connected to; name the server's port"));
  }
  if (IsWildcard(*parsed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", address,
        "\": the host is a wildcard, and clients cannot connect to a wildcard; give one address of the "
        "server"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(const HostPort& address) {
  addrinfo hints{};
  // Without a type each address would come once for each type of socket.
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("resolve ", address.host, ": ", gai_strerror(error),
                                               "; check the name, and the DNS settings of this host"));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& next = addresses.emplace_back();
    std::memcpy(&next.storage, one->ai_addr, one->ai_addrlen);
    next.length = one->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<SocketAddress> ResolveAddress(const HostPort& address) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveAddresses(address);
  if (!addresses.ok()) return addresses.status();
  // getaddrinfo sorts by preference (RFC 6724).
  return addresses->front();
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string InterfaceOf(const SocketAddress& address) {
  ifaddrs* all = nullptr;
  // A failure is told like an address of no interface: callers go on without a name.
  if (getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (SameHost(one->ifa_addr, address.get())) {
      name = one->ifa_name;
      break;
    }
  }
  freeifaddrs(all);
  return name;
}

}  // namespace tensorcast
