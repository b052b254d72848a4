#include "transport/ucx/endpoint_cache.h"

#include <algorithm>
#include <utility>

#include "base/steady_time.h"

namespace tensorcast::transport {

// The one that was used last comes first, so that unused ones grow old at the back and expire.
std::shared_ptr<UcxEndpoint> EndpointCache::Take(const std::string& peer) {
  auto it = idle_.find(peer);
  while (it != idle_.end() && !it->second.empty()) {
    std::shared_ptr<UcxEndpoint> endpoint = std::move(it->second.front().endpoint);
    it->second.pop_front();
    // It may have failed while it was idle.
    if (endpoint->usable()) return endpoint;
    endpoint->Close(nullptr);
  }
  return nullptr;
}

void EndpointCache::Give(const std::string& peer, std::shared_ptr<UcxEndpoint> endpoint) {
  endpoint->set_owner(nullptr);
  std::deque<Idle>& idle = idle_[peer];
  if (!endpoint->usable() || idle.size() >= limits_.idle_a_peer) {
    endpoint->Close(nullptr);
    return;
  }
  const SteadyTime until = SteadyNow() + limits_.idle_time;
  idle.push_front({std::move(endpoint), until});
  Schedule(until);
}

void EndpointCache::Shutdown() {
  // Those that pulls give back from now on are closed as well.
  limits_.idle_a_peer = 0;
  for (auto& [peer, idle] : idle_) {
    for (Idle& one : idle) one.endpoint->Close(nullptr);
  }
  idle_.clear();
  // The worker outlives this cache, and would call it.
  worker_->queue().CancelTimer(timer_);
}

void EndpointCache::Schedule(SteadyTime when) {
  // One timer for all: Expire sets the next one by what it finds.
  if (timer_ != TaskQueue::kNoTimer) return;
  timer_ = worker_->queue().At(when, [this] {
    timer_ = TaskQueue::kNoTimer;
    Expire();
  });
}

void EndpointCache::Expire() {
  const SteadyTime now = SteadyNow();
  SteadyTime next = SteadyTime::InfiniteFuture();
  for (auto& [peer, idle] : idle_) {
    while (!idle.empty() && (idle.back().until <= now || !idle.back().endpoint->usable())) {
      idle.back().endpoint->Close(nullptr);
      idle.pop_back();
    }
    if (!idle.empty()) next = std::min(next, idle.back().until);
  }
  absl::erase_if(idle_, [](const auto& entry) { return entry.second.empty(); });
  if (next != SteadyTime::InfiniteFuture()) Schedule(next);
}

}  // namespace tensorcast::transport
