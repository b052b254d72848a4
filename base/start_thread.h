// Starts a thread. std::thread throws if the process has reached its limit of threads or has no memory for a
// stack; our code does not throw. Stateless; thread-safe.
#pragma once

#include <string_view>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Runs `work` on a new thread, which the caller joins. `what` begins the message of an error, and says what
// the thread is for, such as "serve 127.0.0.1:7400". RESOURCE_EXHAUSTED if no thread can be started; `work`
// does not run then.
absl::StatusOr<std::thread> StartThread(std::string_view what, absl::AnyInvocable<void() &&> work);

}  // namespace tensorcast
