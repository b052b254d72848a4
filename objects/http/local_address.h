// Recognises local addresses: loopback, link-local (which clouds use for their metadata services) and
// unspecified ones, also as IPv4 within IPv6. A service at such an address often trusts every caller. Pure
// functions; thread-safe.
#pragma once

#include <sys/socket.h>

#include <string_view>

namespace tensorcast::objects {

bool IsLocalAddress(const sockaddr& address);
// Whether the text `host` is local, without asking a name server: "localhost", a name below it, or any
// spelling of a local address that a resolver accepts ("127.1", "0x7f000001"). An IPv6 address has no
// brackets here.
bool IsLocalHost(std::string_view host);

}  // namespace tensorcast::objects
