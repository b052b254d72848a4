// Runs work on a separate thread, because the work may never end: file operations on FUSE or NFS may hang.
// Only this thread hangs; the caller continues when its context ends. Stateless; thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"

namespace tensorcast {

// AwaitAside calls this on the caller's thread: with true once the work has taken kSlowAside, and later with
// false when the work or the context ends.
using OnSlow = std::function<void(bool slow)>;
inline constexpr absl::Duration kSlowAside = absl::Seconds(1);

// Runs `work` on a detached thread. `work` must own all that it refers to. If no thread can be started,
// returns false and does not run `work`.
bool RunDetached(absl::AnyInvocable<void() &&> work);

// Runs `work` on a detached thread and waits for its end. `work` must own all that it refers to. `what` names
// the work in messages. CANCELLED or DEADLINE_EXCEEDED if the context ends first; the work then continues.
// RESOURCE_EXHAUSTED if too many calls hang or no thread can be started; the work then does not run.
absl::Status AwaitAside(const RequestContext& context, std::string_view what,
                        absl::AnyInvocable<void() &&> work, const OnSlow& on_slow = nullptr);

// AwaitAside for work with a result. If the context ends first, the result is destroyed.
template <class T>
absl::StatusOr<T> RunAside(const RequestContext& context, std::string_view what,
                           absl::AnyInvocable<absl::StatusOr<T>() &&> work, const OnSlow& on_slow = nullptr) {
  auto result = std::make_shared<std::optional<absl::StatusOr<T>>>();
  absl::Status status = AwaitAside(
      context, what, [result, work = std::move(work)]() mutable { result->emplace(std::move(work)()); },
      on_slow);
  if (!status.ok()) return status;
  return *std::move(*result);
}

}  // namespace tensorcast
