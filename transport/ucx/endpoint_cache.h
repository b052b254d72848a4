// Keeps a receiver's idle UCX endpoints for later pulls from the same peer, because a new connection takes
// longer than a small pull. Private to this folder. Only the progress thread uses it.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "transport/ucx/ucx_endpoint.h"

namespace tensorcast::transport {

class EndpointCache {
 public:
  struct Limits {
    size_t idle_a_peer = 4;  // max idle endpoints to one peer
    absl::Duration idle_time = absl::Seconds(60);
  };
  EndpointCache(UcxWorker* worker, const Limits& limits) : worker_(worker), limits_(limits) {}

  // Removes an idle endpoint to the peer and returns it, without an owner; nullptr: no endpoint is idle.
  std::shared_ptr<UcxEndpoint> Take(const std::string& peer);
  // Stores the endpoint for at most idle_time. Closes it if it failed or the peer has idle_a_peer endpoints.
  // REQUIRES: no operation is in flight on the endpoint.
  void Give(const std::string& peer, std::shared_ptr<UcxEndpoint> endpoint);
  // Closes all idle endpoints; from now on Give closes every endpoint. Must be called before destruction.
  void Shutdown();

 private:
  struct Idle {
    std::shared_ptr<UcxEndpoint> endpoint;
    SteadyTime until;
  };
  void Expire();
  void Schedule(SteadyTime when);

  UcxWorker* const worker_;
  Limits limits_;
  absl::flat_hash_map<std::string, std::deque<Idle>> idle_;  // newest first
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;           // calls Expire
};

}  // namespace tensorcast::transport
