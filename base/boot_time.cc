#include "base/boot_time.h"

#include <ctime>

namespace tensorcast {

absl::Duration SinceBoot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace tensorcast
