#include "base/posix/unix_address.h"

#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace tensorcast {

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path \"", path, "\" has ", path.size(),
                                                   " bytes; that of a unix socket has 1 to ",
                                                   sizeof(address.sun_path) - 1, ": choose a shorter one"));
  }
  path.copy(address.sun_path, path.size());
  return address;
}

}  // namespace tensorcast
