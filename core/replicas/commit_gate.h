// Live leases: leases under which a replica may be rewritten, once the holder of each says so.
//
//   holder ── Enter ──► CommitGate ── Close: so many let it go ──► ReplicaRetirement ── EndLeases ──►
//   rewriting
//          ◄─ Leave ──             ◄─ Reopen: not yet ───────────
//
// A live lease is a lease like any other until its holder enters the gate of an ingest that writes a later
// version over the replica (core/ingest/advance.h). While a holder is in the gate it does not read. The
// replica is retired when every lease on it is one that is in the gate: a holder that does not enter, and a
// reader without a live lease, keep it as it is. A holder that dies ends its lease, and counts no more.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

// What a holder has: at first the lease that it was given, none while the replica is rewritten, then one on
// what the replica became.
class LiveLease {
 public:
  explicit LiveLease(std::shared_ptr<const ReplicaLease> lease) : lease_(std::move(lease)) {}

  // Null while the replica is rewritten.
  std::shared_ptr<const ReplicaLease> lease() const {
    absl::MutexLock lock(&mutex_);
    return lease_;
  }
  void Set(std::shared_ptr<const ReplicaLease> lease) {
    absl::MutexLock lock(&mutex_);
    lease_.swap(lease);  // the earlier one ends after the lock, which the argument outlives
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ReplicaLease> lease_ ABSL_GUARDED_BY(mutex_);
};

class CommitGate {
 public:
  // `on_staged`: called once, when the later version is staged, on a thread of the engine and without a lock.
  explicit CommitGate(std::function<void()> on_staged) : on_staged_(std::move(on_staged)) {}

  // --- the holders'
  // From now on the replica may be rewritten for all that this holder cares. REQUIRES: its lease is on the
  // replica that the ingest advances.
  void Enter(const std::shared_ptr<LiveLease>& holder);
  // True: the holder is out, and nothing was written. False: the rewriting has begun, and the lease has
  // ended; the ingest ends soon. Waits while it is being decided.
  bool Leave(const LiveLease* holder);
  bool HasEntered(const LiveLease* holder) const;
  bool empty() const;
  // Why the replica was not retired when that was tried last; OK: it was not tried.
  absl::Status refusal() const;

  // --- the ingest's
  // All of the later version is here. `own`: the ingest's lease on the replica, which lets it go. `wake` is
  // called for each holder that enters, under the gate's lock.
  void Staged(std::shared_ptr<const ReplicaLease> own, std::function<void()> wake);
  // How many leases let the replica go now; 0 where no holder has entered. They stay in until Reopen.
  uint32_t Close();
  void Reopen(const absl::Status& why);
  // The replica is retired: the leases of those that have entered end. REQUIRES: closed.
  void EndLeases();

 private:
  struct Entered {
    std::shared_ptr<LiveLease> holder;
    std::shared_ptr<const ReplicaLease> lease;  // so that it counts for as long as the holder does
  };

  const std::function<void()> on_staged_;
  mutable absl::Mutex mutex_;
  std::map<const LiveLease*, Entered> entered_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ReplicaLease> own_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool rewriting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
