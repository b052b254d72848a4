// Decides which of several global stores leads: the store that created the leader key in etcd, which is bound
// to a lease. The transaction that creates the key also increments the cluster's counter, the epoch. Every
// change compares the key's creation revision (Fence), so a late change of a previous leader has no effect.
//
// A leader only trusts its own clock (CLOCK_BOOTTIME). It leads for a little less than the lease, counted
// from when it *sent* the last keepalive that etcd answered. So it stops before another store can begin, even
// if it was stopped, suspended or cut off meanwhile. etcd's own locks are not used. Thread-safe.
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
  std::string prefix;                     // the prefix of all keys of this cluster
  absl::Duration ttl = absl::Seconds(2);  // of the lease; etcd's min is two seconds
  std::string name;                       // of this process, for people
  std::string address;                    // the address of this process for clients
};

// How a global store registers itself.
struct StoreAddress {
  std::string name;
  std::string address;
  friend bool operator==(const StoreAddress&, const StoreAddress&) = default;
};

class Leadership {
 public:
  // Blocks until this process leads, even while etcd does not answer. Calls `on_leader` with the leading
  // store at each change. FAILED_PRECONDITION if a newer version wrote the data. CANCELLED when the context
  // is cancelled. `client` must outlive the result.
  static absl::StatusOr<std::unique_ptr<Leadership>> Campaign(
      Client* client, const LeadershipOptions& options, const RequestContext& context,
      absl::FunctionRef<void(const StoreAddress&)> on_leader);
  // Resigns, so that another store need not wait for the lease to end.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  absl::Duration led_for() const;
  // How long this store still leads if etcd does not answer; zero once it no longer leads.
  absl::Duration left() const;
  // OK while no other store can lead; afterwards always UNAVAILABLE.
  absl::Status Check() const;
  // A context for calls that only a leader makes. It ends after `patience`, or with the leadership; Check()
  // then returns the reason.
  RequestContext While(absl::Duration patience) const;
  // Ends the leadership now. Check returns `why`, unless the leadership had already ended.
  void StepDown(const absl::Status& why);
  // Calls `lost` once, on its own thread, when the leadership ends; at once if it has already ended. Not
  // called for a resignation.
  void OnLost(std::function<void(const absl::Status&)> lost);

  // The comparison that makes a transaction depend on this leadership.
  etcdserverpb::Compare Fence() const;

  // The number grows with each leader of this cluster; rpc::Epoch's cluster is the etcd cluster.
  const rpc::Epoch& epoch() const { return epoch_; }

 private:
  struct Term {
    int64_t lease = 0;
    absl::Duration ttl;
    absl::Duration since;  // since boot, when the lease was requested
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
  const absl::Duration since_;     // since boot
  std::atomic<int64_t> until_ns_;  // since boot
  const Cancellation calls_;
  mutable absl::Mutex mutex_;
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TaskLoop> keep_alive_;  // last: its task uses the other members
};

}  // namespace tensorcast::global_store::etcd
