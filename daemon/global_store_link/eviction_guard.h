// Asks the global store before a replica is evicted, so that the last copy of an artifact is kept.
// Thread-safe.
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
  // Checks whether this node also has a packed file of the replica's artifact. True: the replica may be
  // evicted even if the global store cannot be reached. An error: the packed file is damaged or cannot be
  // read, so the replica must not be evicted.
  using DurableHere = std::function<absl::StatusOr<bool>(const ReplicaInfo&)>;

  // `client` and `link` must outlive the guard.
  ClusterEvictionGuard(GlobalStoreClient* client, GlobalStoreLink* link, DurableHere durable_here,
                       absl::Duration timeout = absl::Seconds(5))
      : client_(client), link_(link), durable_here_(std::move(durable_here)), timeout_(timeout) {}

  absl::Status MayEvict(const ReplicaInfo& replica) override;

  // Withdraws consents that the engine did not use. A consent is unused if its replica is still `ready` after
  // `unused_for`. The next call repeats a failed withdrawal.
  void WithdrawUnused(const std::vector<ReplicaInfo>& replicas, absl::Duration unused_for = absl::Seconds(5));

 private:
  GlobalStoreClient* const client_;
  GlobalStoreLink* const link_;
  const DurableHere durable_here_;
  const absl::Duration timeout_;
  absl::Mutex mutex_;
  std::map<std::string, SteadyTime> granted_ ABSL_GUARDED_BY(mutex_);  // replica id -> time of the consent,
                                                                       // or of a call without an answer
};

}  // namespace tensorcast::daemon
