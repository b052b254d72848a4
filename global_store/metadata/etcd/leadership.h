// Elects the leader of several global stores: the leader is the store that created the leader key in etcd.
// etcd deletes the key when the leader's lease ends. The transaction that creates the key also increments the
// epoch, the cluster's counter of leaders. Each change must include the comparison Fence(). So a late change
// of a previous leader has no effect.
//
// A leader trusts only its own clock (CLOCK_BOOTTIME). The leader leads for a little less than its lease,
// counted from when it *sent* the last keepalive that etcd answered. So the leader stops before another store
// begins, even after a suspend or without a network. Thread-safe.
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
  absl::Duration ttl = absl::Seconds(2);  // of the lease; etcd's min is 2 s
  std::string name;                       // name of this process, for people
  std::string address;                    // the address of this process for clients
};

// The name and the address of a global store, as registered in etcd.
struct StoreAddress {
  std::string name;
  std::string address;
  friend bool operator==(const StoreAddress&, const StoreAddress&) = default;
};

class Leadership {
 public:
  // Blocks until this process leads, even while etcd does not answer. Meanwhile calls `on_leader` with each
  // new leading store. FAILED_PRECONDITION: the metadata has another format. CANCELLED: the context was
  // cancelled. `client` must outlive the result.
  static absl::StatusOr<std::unique_ptr<Leadership>> Campaign(
      Client* client, const LeadershipOptions& options, const RequestContext& context,
      absl::FunctionRef<void(const StoreAddress&)> on_leader);
  // Resigns, so that another store can lead at once.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  absl::Duration led_for() const;
  // How long this store still leads without an answer from etcd; zero: it no longer leads.
  absl::Duration left() const;
  // OK while this store leads, so no other store can lead. Afterwards UNAVAILABLE, or the error of StepDown.
  absl::Status Check() const;
  // A context for calls that only a leader makes. The context ends after `patience`, or with the leadership.
  // After the leadership, Check() returns the reason.
  RequestContext While(absl::Duration patience) const;
  // Ends the leadership now. Afterwards Check returns `why`, unless the leadership had already ended.
  void StepDown(const absl::Status& why);
  // Calls `lost` once, on a thread of this object, when the leadership ends, or at once if it has ended. A
  // resignation does not call `lost`.
  void OnLost(std::function<void(const absl::Status&)> lost);

  // The comparison that makes a transaction depend on this leadership.
  etcdserverpb::Compare Fence() const;

  // The epoch of this leadership: `number` grows with each leader; `cluster` is the id of the etcd cluster.
  const rpc::Epoch& epoch() const { return epoch_; }

 private:
  struct Term {
    int64_t lease = 0;
    absl::Duration ttl;
    absl::Duration since;  // time since boot when the lease was requested
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
