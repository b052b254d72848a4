// Whether this host has what a configuration names: addresses to listen on, and places for sockets and for
// private folders. Nothing is made or changed. What is wrong is added to the findings under `key`, quoting
// the value. May ask a name server. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/address.h"
#include "base/config_reader.h"

namespace tensorcast {

// Whether a port of the kernel's choice can be bound at the address, whatever uses the configured one now.
bool IsOwnAddress(const HostPort& address);

// Of an address host:port to listen on: this host has it.
void CheckListen(std::string_view key, const std::string& listen, Findings& findings);

// Of the path of a unix socket, beyond CheckSocketPath: nothing but a socket is in the way. A start makes its
// folder.
void CheckSocketPlace(std::string_view key, const std::string& path, Findings& findings);

// Of a folder that a start makes where it is missing, and makes private: nothing else is in its place, and no
// other user may write to it. `own_entry` as for MakePrivateFolder. The default folder may be missing with
// all above it.
void CheckPrivatePlace(std::string_view key, const std::string& path, std::string_view own_entry,
                       Findings& findings);

}  // namespace tensorcast
