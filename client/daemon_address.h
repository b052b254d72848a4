// Where a program of this host finds its daemon, and whether one listens there. Stateless; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"

namespace tensorcast::client {

inline constexpr char kDaemonVariable[] = "TENSORCAST_DAEMON";
// Where a daemon is looked for that no argument names, for the help of commands.
inline constexpr char kDaemonSearch[] =
    "TENSORCAST_DAEMON, else the first daemon in $XDG_RUNTIME_DIR/tensorcast, the user's state folder and "
    "/run/tensorcast";

// The address of the daemon that a program named: "unix:/path" and "host:port" stay as they are. The path of
// a socket ("/path", "./path", "../path", "~/path") becomes "unix:" and the absolute path.
std::string ToDaemonAddress(std::string_view named);

// The first socket in these folders at which a daemon listens and this user may connect. In each folder the
// daemon's own user is given the operator's socket, every other user the client's. PERMISSION_DENIED where a
// daemon refuses this user and no other serves it; UNAVAILABLE, with the places that were tried, where none
// listens.
absl::StatusOr<std::string> FindDaemonIn(std::span<const std::string> folders);

// The daemon that `named` says; where it is empty, that of the environment, else the first one in
// SocketFolders() (base/posix/socket_folders.h). Every client of a host finds its daemon by this function.
absl::StatusOr<std::string> FindDaemon(std::string_view named);

// Whether a process listens at a daemon's address, asked of the kernel alone and before any call: so a daemon
// that is not there is an error at once, with its cause.
// `address` is unix:/path or host:port. UNAVAILABLE when nothing listens there, PERMISSION_DENIED when this
// user may not connect, CANCELLED and DEADLINE_EXCEEDED as the context says. A name of several addresses
// needs one that listens. May ask a name server, which takes as long as that does.
absl::Status CheckListener(const std::string& address, const RequestContext& context);

}  // namespace tensorcast::client
