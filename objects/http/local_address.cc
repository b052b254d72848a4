#include "objects/http/local_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tensorcast::objects {
namespace {

// 0/8 is "this host" (Linux connects 0.0.0.0 to loopback); in 169.254/16 clouds have their metadata services.
bool IsLocal(const in_addr& address) {
  const uint32_t bits = ntohl(address.s_addr);
  return bits >> 24 == 127 || bits >> 24 == 0 || bits >> 16 == 0xa9fe;  // 127/8, 0/8, 169.254/16
}

bool IsLocal(const in6_addr& address) {
  // The metadata service of EC2 by IPv6, which is in no range of its own.
  constexpr uint8_t kEc2Metadata[16] = {0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x54};
  if (IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_UNSPECIFIED(&address) ||
      IN6_IS_ADDR_LINKLOCAL(&address) || std::memcmp(&address, kEc2Metadata, sizeof(kEc2Metadata)) == 0) {
    return true;
  }
  // 64:ff9b::/96 is how IPv6-only hosts reach IPv4 addresses (RFC 6052).
  constexpr uint8_t kTranslated[12] = {0, 0x64, 0xff, 0x9b};
  const bool has_ipv4 = IN6_IS_ADDR_V4MAPPED(&address) || IN6_IS_ADDR_V4COMPAT(&address) ||
                        std::memcmp(&address, kTranslated, sizeof(kTranslated)) == 0;
  if (!has_ipv4) return false;
  in_addr inside;
  std::memcpy(&inside, address.s6_addr + 12, sizeof(inside));
  return IsLocal(inside);
}

}  // namespace

bool IsLocalAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) return IsLocal(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  if (address.sa_family == AF_INET6) return IsLocal(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  // What is neither IPv4 nor IPv6 is unknown here, and the safe answer refuses it.
  return true;
}

bool IsLocalHost(std::string_view host) {
  // A dot at the end makes a name absolute and leads to the same host.
  host = absl::StripSuffix(host, ".");
  if (absl::EqualsIgnoreCase(host, "localhost") || absl::EndsWithIgnoreCase(host, ".localhost")) return true;
  const std::string text(host);
  // inet_aton takes what resolvers take: "127.1", octal and hexadecimal numbers. inet_pton would not.
  if (in_addr ipv4; inet_aton(text.c_str(), &ipv4) != 0) return IsLocal(ipv4);
  if (in6_addr ipv6; inet_pton(AF_INET6, text.c_str(), &ipv6) == 1) return IsLocal(ipv6);
  return false;
}

}  // namespace tensorcast::objects
