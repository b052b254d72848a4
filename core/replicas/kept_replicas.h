// Replicas of the previous daemon, in memory that was kept. Each is compared with its digests, and is then
// ready in the table, or gone. A background thread compares them one after the other. If an ingest asks for
// one, its own thread compares that replica at once, while the background waits.
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

// Called once for each kept replica, with a lease on the ready replica. The lease is null if the kept replica
// did not match or was forgotten; its memory is then given back.
using OnKeptSettled =
    std::function<void(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease)>;

class KeptReplicas {
 public:
  // `table` must outlive it. `threads` compare one replica.
  KeptReplicas(ReplicaTable* table, int threads) : table_(table), threads_(threads) {}
  ~KeptReplicas();
  KeptReplicas(const KeptReplicas&) = delete;
  KeptReplicas& operator=(const KeptReplicas&) = delete;

  // To be called once. `on_settled` is called with no lock held.
  void Start(std::vector<KeptReplica> replicas, OnKeptSettled on_settled);
  // Blocks until no kept replica of this artifact is still to be compared, or until Stop.
  void Settle(std::string_view artifact_id) { Settle(artifact_id, /*wanted=*/true); }
  // Settles all artifacts; false when there was none.
  bool SettleAll();
  // The kept replica of this artifact will not be in the table.
  void Forget(std::string_view artifact_id);
  // Null if no kept replica of the artifact waits or is being compared.
  std::shared_ptr<const Manifest> FindManifest(std::string_view artifact_id) const;
  // Cancels the running comparison and waits for its end. The remaining replicas stay unsettled.
  void Stop();

 private:
  struct Entry {
    KeptReplica replica;
    bool taken = false;  // a thread compares it
    bool forgotten = false;
  };

  void Settle(std::string_view artifact_id, bool wanted);
  void Compare(const std::shared_ptr<Entry>& entry, bool wanted);
  // False also when the comparison was stopped.
  bool Matches(const KeptReplica& replica, bool wanted) const;
  bool MatchesFrom(const KeptReplica& replica, bool wanted, std::atomic<uint32_t>& next_chunk) const;
  void LetWantedPass() const;

  ReplicaTable* const table_;
  const int threads_;
  OnKeptSettled on_settled_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> wanted_{0};  // replicas that ingests compare at the moment
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tensorcast
