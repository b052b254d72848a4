#include "daemon/service/live_updates.h"

#include <algorithm>

#include "base/steady_time.h"

namespace tensorcast::daemon {

void LiveUpdates::Await(const RequestContext& context, absl::FunctionRef<bool()> over) {
  // Taking and leaving the mutex makes Await look at its condition again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex); });
  absl::MutexLock lock(&mutex);
  auto ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return over() || stopping || context.cancellation.IsCancelled();
  };
  mutex.AwaitWithTimeout(absl::Condition(&ended), TimeLeft(context.deadline));
}

LiveUpdates::Dropped LiveUpdates::Remove(const LiveUpdatePtr& update, const absl::Status& why) {
  const auto found = updates.find(update->base_id);
  if (found != updates.end() && found->second == update) updates.erase(found);
  if (update->ended) return Dropped();
  update->ended = true;
  update->error = why;
  return Dropped(std::move(update->pending));
}

bool LiveUpdates::IsHeld(std::string_view replica_id) const {
  return std::ranges::any_of(holds, [&](const auto& hold) { return hold.second.replica_id == replica_id; });
}

void LiveUpdates::Forget(const std::string& name) {
  Dropped dropped;
  absl::MutexLock lock(&mutex);
  const auto found = holds.find(name);
  if (found == holds.end()) return;
  const std::string replica_id = std::move(found->second.replica_id);
  holds.erase(found);
  const auto update = updates.find(replica_id);
  if (IsHeld(replica_id) || update == updates.end()) return;
  dropped = Remove(LiveUpdatePtr(update->second),
                   absl::CancelledError(
                       "the last process that held the replica ended; get the weights again with live=True"));
}

}  // namespace tensorcast::daemon
