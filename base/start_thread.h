// Starts a thread, and reports a failure as a status: std::thread would throw. Stateless; thread-safe.
#pragma once

#include <string_view>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Runs `work` on a new thread, which the caller joins. `what` says in errors what the thread is for, such as
// "serve 127.0.0.1:7400". RESOURCE_EXHAUSTED if no thread can be started; `work` then does not run.
absl::StatusOr<std::thread> StartThread(std::string_view what, absl::AnyInvocable<void() &&> work);

}  // namespace tensorcast
