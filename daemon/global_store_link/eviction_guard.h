// Asks the global store before a replica is evicted, so that the last copy of an artifact stays. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"

namespace tensorcast::daemon {

class ClusterEvictionGuard : public EvictionGuard {
 public:
  // Whether this node has the same artifact in another replica's packed file, looked at just now: then the
  // replica may go whatever the global store knows. An error when the file is listed, but is not what it
  // should be: others still believe in it, so nothing goes for its sake.
  using DurableHere = std::function<absl::StatusOr<bool>(const ReplicaInfo&)>;

  // `client` and `link` must outlive it.
  ClusterEvictionGuard(GlobalStoreClient* client, GlobalStoreLink* link, DurableHere durable_here,
                       absl::Duration timeout = absl::Seconds(5))
      : client_(client), link_(link), durable_here_(std::move(durable_here)), timeout_(timeout) {}

  absl::Status MayEvict(const ReplicaInfo& replica) override;

  // Takes consents back that the engine did not use: of replicas that are still there, `ready`, this long
  // after the global store stopped counting them. What the global store could not be told is told with the
  // next call.
  void WithdrawUnused(const std::vector<ReplicaInfo>& replicas, absl::Duration unused_for = absl::Seconds(5));

 private:
  GlobalStoreClient* const client_;
  GlobalStoreLink* const link_;
  const DurableHere durable_here_;
  const absl::Duration timeout_;
  absl::Mutex mutex_;
  std::map<std::string, SteadyTime> granted_ ABSL_GUARDED_BY(mutex_);  // replica id -> when
};

}  // namespace tensorcast::daemon
