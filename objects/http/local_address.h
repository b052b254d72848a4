// Recognises local addresses: loopback, link-local (clouds have metadata services there), unspecified, and
// EC2's metadata service by IPv6; also IPv6 addresses that contain a local IPv4 address. A service at such an
// address often trusts every caller. Pure functions; thread-safe.
#pragma once

#include <sys/socket.h>

#include <string_view>

namespace tensorcast::objects {

// True also for an address that is neither IPv4 nor IPv6.
bool IsLocalAddress(const sockaddr& address);
// Whether the text `host` names a local address: "localhost", a name that ends in ".localhost", or any
// spelling of a local address that a resolver accepts ("127.1", "0x7f000001"). Asks no name server. An IPv6
// address must have no brackets.
bool IsLocalHost(std::string_view host);

}  // namespace tensorcast::objects
