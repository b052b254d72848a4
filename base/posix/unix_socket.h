// Unix sockets: the address of a path, the listening socket behind one, and the peer at the other end.
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

// Takes the place of a dead process's socket, never that of a living one, and removes its own file when
// destroyed. Thread-compatible.
class UnixListener {
 public:
  // Only the own user may connect when `groups` is empty; else the socket belongs to the first group (0660),
  // or is open to all (0666) when there are several, since a file has one group only, or when that group is
  // none of this user's: the server checks each peer anyway (CheckPeer). It does not block.
  // ALREADY_EXISTS when a process listens on the path, or a file that is not a socket is there.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(const std::string& path,
                                                              const std::vector<gid_t>& groups);
  ~UnixListener();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  const std::string path_;
  dev_t device_ = 0;  // of our socket's file, so that a successor's is left alone
  ino_t inode_ = 0;
};

// What the kernel says of the process that connected, as it was then.
absl::StatusOr<ucred> PeerCredentials(int socket);

// The user that descriptors for this peer count for. Root counts as this process's own user.
DescriptorUser DescriptorUserAt(int socket);

// PERMISSION_DENIED unless the peer is of this process's user, or is root (which could become that user
// anyway), or one of its groups (primary or supplementary) is allowed. Ids are those of this process's user
// namespace; an id that the namespace does not know matches none.
absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups);

}  // namespace tensorcast
