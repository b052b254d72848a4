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

// INVALID_ARGUMENT for a path that is empty or longer than a socket address holds (107 bytes).
absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path);

// Replaces the socket file of a dead process, never that of a living one, and removes its own file when
// destroyed. Thread-compatible.
class UnixListener {
 public:
  // Listens on `path`; the socket does not block. Only this process's user may connect when `groups` is
  // empty. With one group the socket belongs to that group (0660). It is open to all (0666) when there are
  // several groups, since a file has one group only, or when this user is not in the group: the server checks
  // each peer anyway (CheckPeer). ALREADY_EXISTS when a process listens on the path or a file that is not a
  // socket is there.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(const std::string& path,
                                                              const std::vector<gid_t>& groups);
  ~UnixListener();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  const std::string path_;
  dev_t device_ = 0;  // of our socket file, to recognise a successor's and leave it alone
  ino_t inode_ = 0;
};

// The credentials of the peer process when it connected.
absl::StatusOr<ucred> PeerCredentials(int socket);

// The kind of descriptor user that this peer is. Root counts as this process's own user.
DescriptorUser DescriptorUserAt(int socket);

// PERMISSION_DENIED unless the peer belongs to this process's user, is root (which could become that user
// anyway), or one of its groups (primary or supplementary) is allowed. Ids are those of this process's user
// namespace; an id that the namespace does not know matches none.
absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups);

}  // namespace tensorcast
