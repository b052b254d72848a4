#include "base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {

absl::StatusOr<std::thread> StartThread(std::string_view what, absl::AnyInvocable<void() &&> work) {
  try {
    return std::thread([work = std::move(work)]() mutable { std::move(work)(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": no thread can be started (", error.what(),
                     "); raise the limit of threads (`ulimit -u`, or TasksMax= of the "
                     "systemd unit)"));
  }
}

}  // namespace tensorcast
