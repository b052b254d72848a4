// Live leases: a replica may be rewritten under them, once each holder has entered the commit gate.
//
//   holder ── Enter ──► CommitGate ── Close: number of leases ──► ReplicaRetirement ── EndLeases
//          ◄─ Leave ──             ◄─ Reopen: not yet ──────────
//
// A live lease is an ordinary lease until its holder enters the gate of an ingest that writes a later version
// over the replica (core/ingest/advance.h). A holder does not read while it is in the gate. The replica is
// retired only if every lease on it belongs to a holder in the gate: a holder outside, or a reader without a
// live lease, keeps the replica as it is. The lease of a holder that dies ends, and is not counted.
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

// The lease of one holder: at first the lease that it was given; none while the replica is rewritten; then a
// lease on the new version.
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

  // --- called for holders
  // This holder lets the replica be rewritten. REQUIRES: its lease is on the replica that the ingest
  // advances.
  void Enter(const std::shared_ptr<LiveLease>& holder);
  // True: the holder has left, and nothing was written. False: the rewriting has begun, the lease has ended,
  // and the ingest ends soon. Waits while the gate is closed and the ingest decides.
  bool Leave(const LiveLease* holder);
  bool HasEntered(const LiveLease* holder) const;
  bool empty() const;
  // Why the last attempt did not retire the replica; OK: no attempt yet.
  absl::Status refusal() const;
  // No holder will enter any more. The ingest ends with `why`, unless it rewrites already.
  void GiveUp(const absl::Status& why);

  // --- called by the ingest
  // The later version is staged whole. `own` is the ingest's own lease on the replica; it counts as one in
  // the gate. `wake` is called under the gate's lock for each holder that enters.
  void Staged(std::shared_ptr<const ReplicaLease> own, std::function<void()> wake);
  // Closes the gate: no holder can leave until Reopen. Returns the number of leases in it; 0 if no holder has
  // entered.
  uint32_t Close();
  void Reopen(const absl::Status& why);
  // Why the holders gave the version up; OK: they did not.
  absl::Status given_up() const;
  // The replica is retired: ends the leases of the holders in the gate. REQUIRES: closed.
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
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
