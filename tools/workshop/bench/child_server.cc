#include "tools/workshop/bench/child_server.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::bench {

absl::Status AnnounceAndAwaitSignal(int ready_fd, std::string_view address) {
  const std::string line = absl::StrCat(address, "\n");
  if (write(ready_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return ErrnoStatus(errno, "write to", "--ready-fd");
  }
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  int number = 0;
  sigwait(&end, &number);
  return absl::OkStatus();
}

}  // namespace tensorcast::bench
