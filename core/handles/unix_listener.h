// The listening socket behind a path: takes the place of a dead daemon's, never that of a living one, and
// removes its own file when destroyed. Internal to this folder; thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast {

class UnixListener {
 public:
  // Only the own user may connect when `groups` is empty; else the socket belongs to the first group (0660),
  // or, since a file has one group only, is open to all (0666) when there are several: whoever accepts checks
  // the peer anyway. ALREADY_EXISTS when somebody listens on the path, or a file that is no socket is there.
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
