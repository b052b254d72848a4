#include "core/handles/handles.h"

#include <unistd.h>

namespace tensorcast {
namespace {

void CloseIfOpen(int fd) {
  if (fd >= 0) close(fd);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    CloseIfOpen(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

UniqueFd::~UniqueFd() { CloseIfOpen(fd_); }

}  // namespace tensorcast
