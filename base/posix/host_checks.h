// Checks that this host has the addresses, socket paths and private folders that a configuration names.
// Creates and changes nothing. Each fault is added to the findings under `key` and quotes the value. May ask
// a name server. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/address.h"
#include "base/config_reader.h"

namespace tensorcast {

// Whether this host can bind the address, at a port that the kernel chooses; the configured port may be in
// use.
bool IsOwnAddress(const HostPort& address);

// Checks that this host has the address host:port to listen on.
void CheckListen(std::string_view key, const std::string& listen, Findings& findings);

// Checks that `path` is free or a socket; CheckSocketPath checks the rest. The start of a server makes the
// folder.
void CheckSocketPlace(std::string_view key, const std::string& path, Findings& findings);

// Checks a folder that the start of a server makes, or makes private: `path` is free or a folder, and no
// other user may write to it. `own_entry` as for MakePrivateFolder. The default folder may be missing with
// all folders above it.
void CheckPrivatePlace(std::string_view key, const std::string& path, std::string_view own_entry,
                       Findings& findings);

}  // namespace tensorcast
