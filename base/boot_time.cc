#include "base/boot_time.h"

#include <ctime>

namespace tensorcast {

absl::Duration SinceBoot() {
  timespec now{};
  // The call cannot fail for this clock.
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace tensorcast
