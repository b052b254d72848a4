// Finds the address of the daemon that a program of this host should use, and checks whether a process
// listens at an address. Stateless; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::client {

inline constexpr char kDaemonVariable[] = "TENSORCAST_DAEMON";
// For the help of commands: where a client searches for the daemon if no argument names an address.
inline constexpr char kDaemonSearch[] =
    "TENSORCAST_DAEMON, else the first daemon in $XDG_RUNTIME_DIR/tensorcast, the user's state folder and "
    "/run/tensorcast";

// Turns the text that names a daemon into an address. "unix:/path" and "host:port" stay as they are. The path
// of a socket ("/path", "./path", "../path", "~/path") becomes "unix:" and the absolute path.
std::string ToDaemonAddress(std::string_view named);

// The first socket in these folders at which a daemon listens and to which this user may connect. In each
// folder, the daemon's own user gets the operator's socket. All other users get the client's socket.
// PERMISSION_DENIED if every daemon that listens refuses this user. UNAVAILABLE if no daemon listens; the
// message lists the sockets that were tried.
absl::StatusOr<std::string> FindDaemonIn(std::span<const std::string> folders);

// The address of the daemon that the text `named` means. If it is empty: the address in TENSORCAST_DAEMON,
// else the first socket in SocketFolders() (base/posix/socket_folders.h).
absl::StatusOr<std::string> FindDaemon(std::string_view named);

// Checks, with a plain connection, that a process listens at `address` (unix:/path or host:port). UNAVAILABLE
// if no process listens at `address`. PERMISSION_DENIED if this user may not connect. CANCELLED or
// DEADLINE_EXCEEDED when the context ends. If a host name has several addresses, one that listens is
// enough. The look-up of a host name may last longer than the deadline.
absl::Status CheckListener(const std::string& address, const RequestContext& context);

}  // namespace tensorcast::client
