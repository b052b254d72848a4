// Checks that this host has the addresses, socket paths and private folders that a configuration names.
// Creates and changes nothing. Each fault is added to the findings under `key` and quotes the value. The
// checks of addresses may ask a name server and block. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/address.h"
#include "base/config_reader.h"

namespace tensorcast {

// Whether this host can bind a socket to the address. Ignores the port, which a running server may use.
bool IsOwnAddress(const HostPort& address);

// Checks that this host has the address host:port to listen on.
void CheckListen(std::string_view key, const std::string& listen, Findings& findings);

// Checks that `path` does not exist or is a socket. CheckSocketPath (base/address.h) checks its length. The
// folder may be missing: a server makes it when it starts.
void CheckSocketPlace(std::string_view key, const std::string& path, Findings& findings);

// Checks a folder that a server makes, or makes private, when it starts. An existing `path` must be a folder
// that MakePrivateFolder (state_files.h) accepts with `own_entry`. If `path` does not exist, this user must
// be able to make it. DefaultStateFolder() may always be missing.
void CheckPrivatePlace(std::string_view key, const std::string& path, std::string_view own_entry,
                       Findings& findings);

}  // namespace tensorcast
