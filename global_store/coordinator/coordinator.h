// Keeps the directory and the metadata store consistent: commits a durable change before it applies and
// acknowledges the change. Thread-safe.
//
// Four locks, taken in this order:
//   key_tell_mutex_  serialises the calls to key watchers. A thread that finds this mutex locked leaves its
//                    changes to the thread that holds the mutex;
//   write_mutex_     is held to plan and to apply a durable change, but not during the commit (claims.h);
//   tell_mutex_      serialises the calls to task watchers;
//   mutex_           guards the directory, held briefly. Reads and soft state need only this mutex.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "global_store/coordinator/claims.h"
#include "global_store/coordinator/grant_askers.h"
#include "global_store/coordinator/watches.h"
#include "global_store/directory/directory.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// Makes grant ids and grant keys from the operating system's random numbers. Thread-safe.
class RandomSecrets final : public Secrets {
 public:
  std::string NewGrantId() override;
  std::string NewGrantKey() override;
};

// How long a repeated request is recognised.
inline constexpr absl::Duration kRequestAge = absl::Hours(1);

struct CoordinatorOptions {
  DirectoryOptions directory;
  std::function<SteadyTime()> clock = SteadyNow;       // for state that ends with the process
  std::function<absl::Time()> wall_clock = absl::Now;  // for durable facts
  uint64_t epoch = 0;  // of this leader; 0: the coordinator chooses a random epoch
};

// A planned durable change.
struct Change {
  DurableFacts facts;
  std::vector<ManifestBlob> manifests;         // of new artifacts
  std::string response;                        // recorded, and returned to every repeated request
  std::function<void(Directory&)> also_apply;  // applies soft state of the change; may be empty
  std::vector<std::string> artifacts;          // must exist at Apply; `facts` need not name them
};

class Coordinator {
 public:
  // Loads the directory. `store` and `secrets` must outlive the coordinator.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             MetadataStore* store, Secrets* secrets);

  // Makes the durable change that `prepare` plans, and returns its response. `prepare` may run several times.
  // If `prepare` fails, nothing changes. If the same `request` was made within kRequestAge, only returns the
  // response that was recorded then. Empty `request`: the response is not recorded.
  using Prepare = absl::FunctionRef<absl::StatusOr<Change>(const Directory&, absl::Time wall_now)>;
  absl::StatusOr<std::string> Mutate(std::string_view request, Prepare prepare)
      ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);

  // Runs `use` with exclusive access to the directory, for reads and for changes of soft state. `use` must
  // not block.
  template <class Use>
  auto WithDirectory(Use use) ABSL_LOCKS_EXCLUDED(tell_mutex_, mutex_) {
    bool tasks_changed = false;
    auto result = [&] {
      absl::MutexLock lock(&mutex_);
      const SteadyTime now = options_.clock();
      auto used = use(directory_, now);
      NoteEndedGrants();
      tasks_changed = directory_.tasks().HasChanged();
      return used;
    }();
    if (tasks_changed) TellOfTasks();
    return result;
  }

  // Calls Directory::RequestGrant. The same `request` gets the same grant while the grant lives.
  absl::StatusOr<GrantOffer> RequestGrant(std::string_view request, const GrantRequest& wanted)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the watcher all current keys, then each change. Returns the watcher's id for Unwatch.
  uint64_t Watch(std::shared_ptr<const KeyWatcher> watcher)
      ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  void Unwatch(uint64_t id) { key_watches_.Remove(id); }
  // As Watch, for tasks.
  uint64_t WatchReplicationTasks(std::shared_ptr<const TaskWatcher> watcher)
      ABSL_LOCKS_EXCLUDED(tell_mutex_, mutex_);
  void UnwatchTasks(uint64_t id) { task_watches_.Remove(id); }
  void CloseWatches(const absl::Status& status) {
    key_watches_.Close(status);
    task_watches_.Close(status);
  }

  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) {
    return store_->ReadManifest(artifact_id);
  }

  // Does the periodic work, such as the expiry of silent nodes. Call this several times per heartbeat
  // interval. `behind`: true if this process handles reports late; then silent nodes do not expire.
  void Tick(bool behind = false) ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);

  std::string_view metadata_store_name() const { return store_->name(); }
  uint64_t epoch() const { return epoch_; }
  // The id of the metadata store's content. Every process that serves this content has the same id. Empty if
  // the disk was too full to write the id.
  const std::string& cluster_id() const { return cluster_id_; }
  absl::Time wall_now() const { return options_.wall_clock(); }

 private:
  absl::StatusOr<std::string> Make(std::string_view request, Prepare prepare)
      ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  // Plans a change, and claims its `names` after all other changes with these names have ended.
  absl::StatusOr<Change> Plan(Prepare prepare, absl::Time wall_now, ClaimedNames& names)
      ABSL_LOCKS_EXCLUDED(write_mutex_, tell_mutex_, mutex_);
  Coordinator(const CoordinatorOptions& options, MetadataStore* store, Secrets* secrets);
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mutex_);
  void Purge() ABSL_LOCKS_EXCLUDED(write_mutex_, tell_mutex_, mutex_);
  // Makes ended tasks durable. Heartbeats do not call this, because heartbeats must not wait for the disk.
  void SettleTasks() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  // Deletes versions that no key keeps and no node has.
  void ReleaseVersions() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  void TellOfTasks() ABSL_LOCKS_EXCLUDED(tell_mutex_, mutex_);
  // Sends the applied changes to the key watchers, or leaves the changes to a thread that already sends.
  void TellOfKeys() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_);
  // Logs once when the metadata store becomes unusable.
  void CheckStore() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the key's watchers must get this change. False if the key only loses an earlier version. Call
  // this before the change is applied.
  bool IsNews(const KeyRecord& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteEndedGrants() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  MetadataStore* const store_;
  const uint64_t epoch_;    // differs between processes
  std::string cluster_id_;  // does not change once loaded
  Watches<KeyWatcher> key_watches_;
  Watches<TaskWatcher> task_watches_;

  absl::Mutex key_tell_mutex_ ABSL_ACQUIRED_BEFORE(write_mutex_, tell_mutex_, mutex_);
  absl::Mutex write_mutex_ ABSL_ACQUIRED_BEFORE(tell_mutex_, mutex_);
  Claims under_way_ ABSL_GUARDED_BY(write_mutex_);
  absl::flat_hash_set<std::string> requests_ ABSL_GUARDED_BY(write_mutex_);  // running
  bool purging_ ABSL_GUARDED_BY(write_mutex_) = false;                       // true: new changes wait
  std::vector<KeyRecord> untold_keys_ ABSL_GUARDED_BY(write_mutex_);         // applied, but not sent yet
  absl::Mutex tell_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  Directory directory_ ABSL_GUARDED_BY(mutex_);
  SteadyTime last_tick_ ABSL_GUARDED_BY(mutex_);
  SteadyTime next_purge_ ABSL_GUARDED_BY(mutex_);
  bool store_usable_ ABSL_GUARDED_BY(mutex_) = true;
  GrantAskers grant_askers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::global_store
