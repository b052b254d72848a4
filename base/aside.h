// Work that may never end, on threads of its own: what waits for a file system that another process chose
// (FUSE, NFS) may hang for as long as that one likes, and nothing in this process can end it. So the thread
// that hangs is one that nothing else needs, and the caller goes on when its context ends. Functions only,
// thread-safe.
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

// Told when work takes longer than kSlowAside, and when that work has ended or was left.
using OnSlow = std::function<void(bool slow)>;
inline constexpr absl::Duration kSlowAside = absl::Seconds(1);

// Runs `work` on a detached thread. What it refers to belongs to it. False, and it is not run, where no
// thread is to be had.
bool RunDetached(absl::AnyInvocable<void() &&> work);

// Runs `work` on a detached thread and waits for its end: OK. CANCELLED or DEADLINE_EXCEEDED when the context
// ends first: the work goes on, alone. RESOURCE_EXHAUSTED when too many were left alone already, or no thread
// is to be had: it was not run.
absl::Status AwaitAside(const RequestContext& context, std::string_view what,
                        absl::AnyInvocable<void() &&> work, const OnSlow& on_slow = nullptr);

// The same of work with a result. What the work refers to belongs to it; so does the result, once its caller
// has left.
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
