// Replicas of the previous daemon, in memory that was kept (daemon.keep_pool). Each kept replica is compared
// with its digests. The replica is then settled: it is ready in the table, or it was dropped. A background
// thread compares the replicas one after the other. If an ingest needs a kept replica, the thread of the
// ingest compares that replica at once; the background thread waits meanwhile.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "core/artifact/manifest.h"
#include "core/memory/host_pool.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

struct KeptReplica {
  std::shared_ptr<const Manifest> manifest;
  HostAllocation memory;  // of its whole image
};

// Called once for each kept replica that was compared, with a lease on the ready replica. The lease is null
// if the kept replica did not match or was forgotten; the replica's memory is then given back.
using OnKeptSettled =
    std::function<void(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease)>;

class KeptReplicas {
 public:
  // `table` must outlive this object. `threads` threads together compare one replica.
  KeptReplicas(ReplicaTable* table, int threads) : table_(table), threads_(threads) {}
  ~KeptReplicas();
  KeptReplicas(const KeptReplicas&) = delete;
  KeptReplicas& operator=(const KeptReplicas&) = delete;

  // Call it once. `on_settled` is called with no lock held.
  void Start(std::vector<KeptReplica> replicas, OnKeptSettled on_settled);
  // Compares the kept replica of this artifact, if there is one. If another thread is already comparing the
  // replica, waits for that thread. Stop ends the comparison and the wait.
  void Settle(std::string_view artifact_id) { Settle(artifact_id, /*wanted=*/true); }
  // Settles all kept replicas; false if there were none.
  bool SettleAll();
  // Makes sure that the kept replica of this artifact does not get into the table.
  void Forget(std::string_view artifact_id);
  // The manifest of a kept replica that is not settled; null if there is none.
  std::shared_ptr<const Manifest> FindManifest(std::string_view artifact_id) const;
  // Cancels the comparisons and waits for the background thread. The remaining replicas stay unsettled.
  void Stop();

 private:
  struct Entry {
    KeptReplica replica;
    bool taken = false;  // a thread is comparing it
    bool forgotten = false;
  };

  void Settle(std::string_view artifact_id, bool wanted);
  void Compare(const std::shared_ptr<Entry>& entry, bool wanted);
  // False if the replica does not match, or if the comparison was stopped.
  bool Matches(const KeptReplica& replica, bool wanted) const;
  bool MatchesFrom(const KeptReplica& replica, bool wanted, std::atomic<uint32_t>& next_chunk) const;
  void LetWantedPass() const;

  ReplicaTable* const table_;
  const int threads_;
  OnKeptSettled on_settled_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> wanted_{0};  // the number of replicas that ingests are comparing
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tensorcast
