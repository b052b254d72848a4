#include "base/random.h"

#include <sys/random.h>

#include "absl/log/check.h"

namespace tensorcast {

void FillRandom(void* bytes, size_t count) {
  // Up to 256 bytes arrive whole and uninterrupted once the kernel's pool is seeded; before that a signal may
  // cut in.
  ssize_t got;
  do {
    got = getrandom(bytes, count, 0);
  } while (got < 0 && errno == EINTR);
  PCHECK(got == static_cast<ssize_t>(count)) << "getrandom: no unique ids can be made on this kernel";
}

}  // namespace tensorcast
