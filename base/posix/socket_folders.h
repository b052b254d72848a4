// Where a daemon puts its sockets, and where its clients look for them. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorcast {

// The folder for the sockets of a system service (the packaged service, or a daemon that root starts).
inline constexpr char kSystemSocketFolder[] = "/run/tensorcast";

// The names of the sockets in their folder.
inline constexpr char kOperatorSocket[] = "daemon.sock";  // gRPC for the daemon's own user: every call
inline constexpr char kClientSocket[] = "client.sock";    // gRPC for other users: a client's calls
inline constexpr char kHandleSocket[] = "handles.sock";   // descriptors of replicas

// The folder for the sockets of a daemon that this user starts. For root: kSystemSocketFolder. For other
// users: $XDG_RUNTIME_DIR/tensorcast if the variable names, by an absolute path, a folder of this user; else
// the default state folder.
std::string DefaultSocketFolder();

// The folder for the sockets of a daemon with this state folder: DefaultSocketFolder for the default state
// folder, else the state folder itself.
std::string SocketFolderOf(std::string_view state_folder);

// The folders in which a client of this user looks for a daemon, in order. For users other than root: the one
// in $XDG_RUNTIME_DIR (see above), then the default state folder. For all users, last: kSystemSocketFolder.
std::vector<std::string> SocketFolders();

}  // namespace tensorcast
