// Addresses that lead to this host or its link: loopback, link-local (where clouds have their metadata
// services) and unspecified ones, also as IPv4 within IPv6. A service there often trusts every caller. Pure
// functions; thread-safe.
#pragma once

#include <sys/socket.h>

#include <string_view>

namespace tensorcast::objects {

bool IsLocalAddress(const sockaddr& address);
// By what the text says alone, without asking a name server: "localhost" and what is below it, and any
// spelling of such an address that a resolver takes ("127.1", "0x7f000001"). Without the brackets of IPv6.
bool IsLocalHost(std::string_view host);

}  // namespace tensorcast::objects
