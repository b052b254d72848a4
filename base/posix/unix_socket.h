// Unix sockets: the address of a path, a listening socket at a path, and the identity of a peer.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

// INVALID_ARGUMENT for a path that is empty, longer than a socket address holds (107 bytes), or has a zero
// byte.
absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path);

// A socket that listens on a path. The destructor removes the socket file. Thread-compatible.
class UnixListener {
 public:
  // Listens on `path`; the socket is non-blocking. Replaces the socket file of a dead process. ALREADY_EXISTS
  // if a living process listens on `path`, if this user may not connect to the socket at `path`, or if the
  // file at `path` is not a socket.
  //
  // Without `groups` only this process's user may connect (0600). With one group that this user belongs to,
  // the socket file has that group (0660). With any other `groups`, all users may connect (0666), and the
  // server must check each peer (CheckPeer).
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(const std::string& path,
                                                              const std::vector<gid_t>& groups);
  ~UnixListener();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  const std::string path_;
  dev_t device_ = 0;  // of our socket file: the destructor does not remove another file
  ino_t inode_ = 0;
};

// The credentials of the peer process when it connected.
absl::StatusOr<ucred> PeerCredentials(int socket);

// The peer's kind (process_limits.h), by its user; root counts as kOwnUser.
DescriptorUser DescriptorUserAt(int socket);

// OK if the peer runs as this process's user or as root, or if one of its groups (primary or supplementary)
// is in `allowed_groups`; else PERMISSION_DENIED. An id that this process's user namespace does not map never
// matches.
absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups);

}  // namespace tensorcast
