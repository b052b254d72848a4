// The listening socket behind a path: takes the place of a dead process's, never that of a living one, and
// removes its own file when destroyed. Thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

class UnixListener {
 public:
  // Only the own user may connect when `groups` is empty; else the socket belongs to the first group (0660),
  // or is open to all (0666) when there are several, since a file has one group only, or when that group is
  // none of this user's: whoever accepts checks the peer anyway (unix_peer.h). It does not block.
  // ALREADY_EXISTS when somebody listens on the path, or a file that is no socket is there.
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

}  // namespace tensorcast
