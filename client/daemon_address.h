// Finds the address of the daemon that a program of this host should use, and tells whether a process listens
// there. Stateless; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::client {

inline constexpr char kDaemonVariable[] = "TENSORCAST_DAEMON";
// For the help of commands: where the daemon is searched for when no argument names one.
inline constexpr char kDaemonSearch[] =
    "TENSORCAST_DAEMON, else the first daemon in $XDG_RUNTIME_DIR/tensorcast, the user's state folder and "
    "/run/tensorcast";

// Turns the text that names a daemon into an address. "unix:/path" and "host:port" stay as they are. The path
// of a socket ("/path", "./path", "../path", "~/path") becomes "unix:" and the absolute path.
std::string ToDaemonAddress(std::string_view named);

// The first socket in these folders at which a daemon listens and to which this user may connect. In each
// folder, the daemon's own user gets the operator's socket, and every other user gets the client's socket.
// PERMISSION_DENIED if a daemon refuses this user and no other daemon accepts this user. UNAVAILABLE if no
// daemon listens; the message lists the places that were tried.
absl::StatusOr<std::string> FindDaemonIn(std::span<const std::string> folders);

// The address of the daemon that `named` names. If `named` is empty, the daemon in TENSORCAST_DAEMON, else
// the first one in SocketFolders() (base/posix/socket_folders.h). Every client of a host uses this function
// to find its daemon.
absl::StatusOr<std::string> FindDaemon(std::string_view named);

// Checks that a process listens at `address` (unix:/path or host:port), by a plain connection before any RPC.
// So if no daemon runs, the caller gets an error at once, with the cause. UNAVAILABLE when nothing listens
// there, PERMISSION_DENIED when this user may not connect, CANCELLED and DEADLINE_EXCEEDED as the context
// says. If a host name has several addresses, one that listens is enough. Resolving a host name may ask a
// name server and then takes as long as the server needs.
absl::Status CheckListener(const std::string& address, const RequestContext& context);

}  // namespace tensorcast::client
