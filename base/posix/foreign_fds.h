// Descriptors that another process passed to this process. close(2) may wait for the file system behind a
// descriptor (FUSE, NFS), so the destructor closes the descriptors on separate threads. Move-only;
// thread-compatible.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/posix/unique_fd.h"

namespace tensorcast {

class ForeignFds {
 public:
  ForeignFds() = default;
  explicit ForeignFds(std::vector<UniqueFd> fds) : fds_(std::move(fds)) {}
  ForeignFds(ForeignFds&&) = default;
  ForeignFds& operator=(ForeignFds&& other) noexcept {
    std::swap(fds_, other.fds_);
    return *this;
  }
  // Returns at once, whatever the file systems do.
  ~ForeignFds();

  bool empty() const { return fds_.empty(); }
  size_t size() const { return fds_.size(); }
  const std::vector<UniqueFd>& fds() const { return fds_; }
  void Add(ForeignFds more);
  // The caller of Take closes the descriptors. REQUIRES: the caller trusts the peer, or the caller's thread
  // may block in close(2).
  std::vector<UniqueFd> Take() && { return std::exchange(fds_, {}); }

 private:
  std::vector<UniqueFd> fds_;
};

}  // namespace tensorcast
