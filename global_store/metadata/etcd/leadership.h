// Which one of several global stores leads: the one with its key, bound to a lease, in etcd. Creating it also
// raises the cluster's counter, in one transaction: the epoch. Every change compares the key's creation
// (Fence), so one that is late changes nothing.
//
// A leader believes itself by its own clock alone (CLOCK_BOOTTIME): from when the last keepalive that etcd
// answered was *sent*, for a little less than the lease. So it stops before another can begin, also where it
// was stopped, suspended or cut off meanwhile. etcd's own locks are not used. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/task_loop.h"
#include "etcd/rpc.pb.h"
#include "global_store/metadata/etcd/client.h"
#include "rpc/epoch.h"

namespace tensorcast::global_store::etcd {

struct LeadershipOptions {
  std::string prefix;                     // of all keys of this cluster
  absl::Duration ttl = absl::Seconds(2);  // of the lease; etcd gives two seconds at least
  std::string name;                       // of this process, for people
  std::string address;                    // where its clients call it
};

// A global store, as it says of itself.
struct StoreAddress {
  std::string name;
  std::string address;
  friend bool operator==(const StoreAddress&, const StoreAddress&) = default;
};

class Leadership {
 public:
  // Blocks until this process leads. `on_leader` is told which store leads meanwhile, at each change. An
  // etcd that does not answer is waited for. FAILED_PRECONDITION where a newer version wrote what is there,
  // CANCELLED as the context says. `client` must outlive it.
  static absl::StatusOr<std::unique_ptr<Leadership>> Campaign(
      Client* client, const LeadershipOptions& options, const RequestContext& context,
      absl::FunctionRef<void(const StoreAddress&)> on_leader);
  // Resigns, so that another need not wait for the lease to end.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  absl::Duration led_for() const;
  // For how long it still leads without an answer of etcd; zero once it leads no more.
  absl::Duration left() const;
  // OK while no other store can lead; UNAVAILABLE from then on, for ever.
  absl::Status Check() const;
  // For calls that only a leader makes: it ends with its leadership, by then Check() says why, or after so
  // long.
  RequestContext While(absl::Duration patience) const;
  // Ends it here and now; the first reason is the one that Check says.
  void StepDown(const absl::Status& why);
  // Calls `lost` once when it is over, from a thread of its own; at once where it is already. Resigning is
  // not told.
  void OnLost(std::function<void(const absl::Status&)> lost);

  // What a transaction has to compare to be this leader's.
  etcdserverpb::Compare Fence() const;

  // Its number grows with each leader of this cluster; the cluster is etcd's.
  const rpc::Epoch& epoch() const { return epoch_; }

 private:
  struct Term {
    int64_t lease = 0;
    absl::Duration ttl;
    absl::Duration since;  // boot, when the lease was asked for
    int64_t created = 0;   // revision of the leader key's creation
    rpc::Epoch epoch;
  };
  Leadership(Client* client, const LeadershipOptions& options, const Term& term);
  static absl::StatusOr<Term> TryOnce(Client* client, const LeadershipOptions& options,
                                      const RequestContext& context, StoreAddress& other);
  void KeepAlive();

  Client* const client_;
  const LeadershipOptions options_;
  const int64_t lease_;
  const int64_t created_;
  const rpc::Epoch epoch_;
  const absl::Duration since_;     // boot
  std::atomic<int64_t> until_ns_;  // since boot
  const Cancellation calls_;
  mutable absl::Mutex mutex_;
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TaskLoop> keep_alive_;  // last: it uses the others
};

}  // namespace tensorcast::global_store::etcd
