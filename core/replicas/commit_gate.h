// A live lease permits the engine to rewrite the replica once the lease's holder has entered the commit gate.
//
//   holder ── Enter ──► CommitGate ── Close: number of leases ──► ReplicaRetirement ── EndLeases
//          ◄─ Leave ──             ◄─ Reopen: not yet ──────────
//
// Each ingest that writes a later version over a replica under live leases has a gate
// (core/ingest/advance.h). A holder must not read the replica while the holder is in the gate. The replica is
// retired only if every lease on it belongs to a holder in the gate or to the ingest. When a holder dies, its
// lease ends and is not counted.
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

// The current lease of one holder. At first the lease is on the old version. During the rewriting there is no
// lease. Afterwards the lease is on the new version. A holder of a GPU replica has the GPU memory open, so a
// LiveLease keeps that memory during its own lifetime, even if the replica is lost. Thread-safe.
class LiveLease {
 public:
  explicit LiveLease(std::shared_ptr<const ReplicaLease> lease)
      : lease_(std::move(lease)), device_(lease_ != nullptr ? lease_->device_block() : nullptr) {}

  // Null while the replica is rewritten, and after the replica was lost.
  std::shared_ptr<const ReplicaLease> lease() const {
    absl::MutexLock lock(&mutex_);
    return lease_;
  }
  void Set(std::shared_ptr<const ReplicaLease> lease) {
    absl::MutexLock lock(&mutex_);
    lease_.swap(lease);  // the argument now has the previous lease, which ends without the lock
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ReplicaLease> lease_ ABSL_GUARDED_BY(mutex_);
  // Destroyed before the lease, because the end of a lease tells waiting requests that there is room.
  const std::shared_ptr<const DeviceBlock> device_;
};

class CommitGate {
 public:
  // `on_staged` is called once, when the later version is staged, on a thread of the engine with no lock
  // held.
  explicit CommitGate(std::function<void()> on_staged) : on_staged_(std::move(on_staged)) {}

  // --- called for holders
  // This holder permits the rewriting. REQUIRES: its lease is on the replica that the ingest rewrites.
  void Enter(const std::shared_ptr<LiveLease>& holder);
  // True: the holder is not in the gate, and nothing was written. False: the rewriting has begun, and the
  // lease has ended. Blocks while the gate is closed, until the ingest reopens it or begins the rewriting.
  bool Leave(const LiveLease* holder);
  bool HasEntered(const LiveLease* holder) const;
  bool empty() const;
  // Why the last attempt did not retire the replica; OK before the first attempt.
  absl::Status refusal() const;
  // --- called by the ingest
  // The later version is completely staged. `own` is the ingest's own lease on the replica, and counts as a
  // lease in the gate. `wake` is called under the gate's lock for each holder that enters later.
  void Staged(std::shared_ptr<const ReplicaLease> own, std::function<void()> wake);
  // Closes the gate: holders may enter, but cannot leave until Reopen or EndLeases. Returns the number of
  // leases in the gate, including the ingest's own lease; 0 if no holder has entered.
  uint32_t Close();
  // Opens the gate again; `why` becomes refusal().
  void Reopen(const absl::Status& why);
  // After the replica was retired: ends the leases of the holders in the gate. REQUIRES: closed.
  void EndLeases();

 private:
  struct Entered {
    std::shared_ptr<LiveLease> holder;
    std::shared_ptr<const ReplicaLease> lease;  // held while the holder is counted
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
