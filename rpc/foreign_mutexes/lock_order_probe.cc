// Tests preload it into a process. When the process ends, it locks two mutexes of the distribution's Abseil
// in both orders, which ends a process that checks the order (foreign_mutexes.h). It then appends a line to
// the file that TENSORCAST_LOCK_ORDER_PROBE names.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace {

void Lock(absl::Mutex& first, absl::Mutex& second) {
  first.Lock();
  second.Lock();
  second.Unlock();
  first.Unlock();
}

[[gnu::destructor]] void Probe() {
  const char* const path = std::getenv("TENSORCAST_LOCK_ORDER_PROBE");
  if (path == nullptr) return;
  absl::Mutex a, b;
  Lock(a, b);
  Lock(b, a);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, "unchecked\n", 10) != 10) std::abort();
  close(fd);
}

}  // namespace
