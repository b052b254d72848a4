// Where a program of this host finds its daemon. Stateless; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::client {

inline constexpr char kDaemonVariable[] = "TENSORCAST_DAEMON";

// The address of the daemon that a program named: "unix:/path" and "host:port" stay as they are. The path of
// a socket ("/path", "./path", "../path", "~/path") becomes "unix:" and the absolute path.
std::string ToDaemonAddress(std::string_view named);

// What the environment variable TENSORCAST_DAEMON names; nullopt where it is not set or empty.
std::optional<std::string> DaemonOfEnvironment();

// The first default socket that this user may connect to: of the user's own daemon, then of the system's.
// UNAVAILABLE with the sockets that were tried where there is none.
absl::StatusOr<std::string> DefaultDaemon();

// The daemon that `named` says; where it is empty that of the environment, else the default.
absl::StatusOr<std::string> FindDaemon(std::string_view named);

}  // namespace tensorcast::client
