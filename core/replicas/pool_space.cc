#include "core/replicas/pool_space.h"

#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {

void PoolSpace::BeginFreeing(Location pool) {
  absl::MutexLock lock(&mutex_);
  ++freeing_[pool];
}

void PoolSpace::EndFreeing(Location pool) {
  absl::MutexLock lock(&mutex_);
  // In one step: a request that sees no memory coming sees the event.
  --freeing_[pool];
  ++events_;
}

bool PoolSpace::IsFreeing(Location pool) const {
  absl::MutexLock lock(&mutex_);
  const auto found = freeing_.find(pool);
  return found != freeing_.end() && found->second > 0;
}

void PoolSpace::NoteChance() {
  absl::MutexLock lock(&mutex_);
  ++events_;
}

uint64_t PoolSpace::events() const {
  absl::MutexLock lock(&mutex_);
  return events_;
}

// Events wake every waiter, of whatever pool: each tries again, and waits anew where its pool has no room.
void PoolSpace::AwaitEvent(uint64_t seen, const RequestContext& context) const {
  // The cancellation is not guarded by the mutex: to take it, and give it back, makes Abseil look again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return events_ != seen || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&over), TimeLeft(context.deadline));
}

void PoolSpace::CountEviction(Location pool, std::string_view reason) {
  otel::metrics::kPoolEvictions.Add(1, {LocationKindName(pool.kind), reason});
  absl::MutexLock lock(&mutex_);
  ++evictions_[pool];
}

uint64_t PoolSpace::evictions(Location pool) const {
  absl::MutexLock lock(&mutex_);
  const auto found = evictions_.find(pool);
  return found == evictions_.end() ? 0 : found->second;
}

}  // namespace tensorcast
