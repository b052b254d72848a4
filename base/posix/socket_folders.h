// Where a daemon puts its sockets and where its clients look for them: one rule for the daemon, the command
// line, C++ and Python. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorcast {

// The folder for the sockets of a system service: the packaged one, or a daemon that root starts.
inline constexpr char kSystemSocketFolder[] = "/run/tensorcast";

// The names of the sockets in their folder.
inline constexpr char kOperatorSocket[] = "daemon.sock";  // gRPC for the daemon's own user: every call
inline constexpr char kClientSocket[] = "client.sock";    // gRPC for other users: a client's calls
inline constexpr char kHandleSocket[] = "handles.sock";   // descriptors of replicas

// The folder for the sockets of a daemon that this user starts. For root it is kSystemSocketFolder. For
// another user it is $XDG_RUNTIME_DIR/tensorcast if the variable has the absolute path of a folder of this
// user; `su` may keep the previous user's value. Otherwise it is the default state folder.
std::string DefaultSocketFolder();

// The folder for the sockets of a daemon with this state folder: DefaultSocketFolder if it is the default
// state folder, else the state folder itself. So two daemons of one user have separate sockets.
std::string SocketFolderOf(std::string_view state_folder);

// The folders in which a client of this user looks for a daemon, in order: first the folders of a daemon that
// this user started, then the folder of the system service. A user's state folder is always included, since a
// daemon may have been started without $XDG_RUNTIME_DIR.
std::vector<std::string> SocketFolders();

}  // namespace tensorcast
