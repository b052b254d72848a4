// The directory and the metadata store, made one: durable changes are committed before they are applied and
// acknowledged, a repeated request gets the recorded answer, watchers hear of changes in order, silent nodes
// expire. Knows nothing of protobuf or gRPC. Thread-safe.
//
// Four locks, taken in this order:
//   key_tell_mutex_  calling the watchers of keys, one thread at a time, so that each watcher hears of
//                 changes in their order. A publisher that finds it taken leaves its change to the
//                 thread that holds it, so a key with many watchers delays only the thread that calls
//                 them;
//   write_mutex_  planning a durable change, and applying it; not held over the commit, while what the change
//                 is about is claimed (claims.h), and not over calls of the watchers of keys;
//   tell_mutex_   tasks that changed, from the directory to their watchers, so that these hear of them
//                 in order: most of it is soft state, which changes without `write_mutex_`;
//   mutex_        the directory, for a moment at a time; reads and soft state need only this one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "global_store/coordinator/claims.h"
#include "global_store/coordinator/watches.h"
#include "global_store/directory/directory.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// Grant ids and grant keys from the operating system's random numbers. Thread-safe.
class RandomSecrets final : public Secrets {
 public:
  std::string NewGrantId() override;
  std::string NewGrantKey() override;
};

// How long a repeated request is recognised.
inline constexpr absl::Duration kRequestAge = absl::Hours(1);

struct CoordinatorOptions {
  DirectoryOptions directory;
  std::function<SteadyTime()> clock = SteadyNow;       // of all that lives with the process
  std::function<absl::Time()> wall_clock = absl::Now;  // of durable facts
  uint64_t epoch = 0;  // of the one that leads; 0: a random one, of this process
};

// What a durable change would do.
struct Change {
  DurableFacts facts;
  std::vector<ManifestBlob> manifests;         // of artifacts that are new
  std::string response;                        // recorded, and returned to every repetition
  std::function<void(Directory&)> also_apply;  // soft state that comes with it; may be empty
  std::string artifact;                        // that this is about, where the facts may not say so
};

class Coordinator {
 public:
  // Loads the directory. `store` and `secrets` must outlive the coordinator.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             MetadataStore* store, Secrets* secrets);

  // `prepare` plans against the directory as it is; its error changes nothing. It is called again where a
  // change under way (claims.h) has to be waited for. Returns the change's response, or the one recorded for
  // the same `request` (empty: not recorded) within kRequestAge.
  using Prepare = absl::FunctionRef<absl::StatusOr<Change>(const Directory&, absl::Time wall_now)>;
  absl::StatusOr<std::string> Mutate(std::string_view request, Prepare prepare)
      ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);

  // Runs `use` with the directory to itself: reads, and changes of soft state. It must not block.
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

  // As Transfers::RequestGrant; the same `request` gets the same grant while that lives.
  absl::StatusOr<GrantOffer> RequestGrant(std::string_view request, const GrantRequest& wanted)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the watcher of the keys as they are, then of each change. Returns its id for Unwatch.
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

  // To be called several times a heartbeat: expires nodes and grants, makes durable which tasks ended,
  // deletes versions that are over, looks after the metadata store, and now and then purges what is old.
  // While the process is `behind` with what nodes tell it, their silence does not count.
  void Tick(bool behind = false) ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);

  std::string_view metadata_store_name() const { return store_->name(); }
  uint64_t epoch() const { return epoch_; }
  // Of the metadata, whichever process serves it. Empty where a full disk did not let it be written.
  const std::string& cluster_id() const { return cluster_id_; }
  absl::Time wall_now() const { return options_.wall_clock(); }

 private:
  absl::StatusOr<std::string> Make(std::string_view request, Prepare prepare)
      ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  // Plans it, once nothing that it touches is under way, and claims that.
  absl::StatusOr<Change> Plan(Prepare prepare, absl::Time wall_now, ClaimedNames& names)
      ABSL_LOCKS_EXCLUDED(write_mutex_, tell_mutex_, mutex_);
  Coordinator(const CoordinatorOptions& options, MetadataStore* store, Secrets* secrets);
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mutex_);
  void Purge() ABSL_LOCKS_EXCLUDED(write_mutex_, tell_mutex_, mutex_);
  // Not where nodes report it: heartbeats do not wait for the disk. What is lost in between is reported
  // again.
  void SettleTasks() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  // Deletes versions that no key keeps and no node has, as SettleTasks settles tasks.
  void ReleaseVersions() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_, tell_mutex_, mutex_);
  void TellOfTasks() ABSL_LOCKS_EXCLUDED(tell_mutex_, mutex_);
  // Tells the watchers of keys what was applied, unless another thread is telling them: that one goes on with
  // what is new.
  void TellOfKeys() ABSL_LOCKS_EXCLUDED(key_tell_mutex_, write_mutex_);
  // Says so once when the store stops being usable, before it refuses a caller's change.
  void CheckStore() ABSL_LOCKS_EXCLUDED(mutex_);
  // Before it is applied. A key that only loses an earlier version is as its watchers know it.
  bool IsNews(const KeyRecord& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteEndedGrants() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<GrantOffer> RepeatedOffer(std::string_view request, SteadyTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetGrant(const std::string& request, const std::string& grant_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  MetadataStore* const store_;
  const uint64_t epoch_;    // new in each process
  std::string cluster_id_;  // does not change once loaded
  Watches<KeyWatcher> key_watches_;
  Watches<TaskWatcher> task_watches_;

  absl::Mutex key_tell_mutex_ ABSL_ACQUIRED_BEFORE(write_mutex_, tell_mutex_, mutex_);
  // Of planning and of applying durable changes; not held while one is committed.
  absl::Mutex write_mutex_ ABSL_ACQUIRED_BEFORE(tell_mutex_, mutex_);
  Claims under_way_ ABSL_GUARDED_BY(write_mutex_);
  absl::flat_hash_set<std::string> requests_ ABSL_GUARDED_BY(write_mutex_);  // under way
  bool purging_ ABSL_GUARDED_BY(write_mutex_) = false;                       // nothing begins
  std::vector<KeyRecord> untold_keys_ ABSL_GUARDED_BY(write_mutex_);         // applied; in their order
  absl::Mutex tell_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  Directory directory_ ABSL_GUARDED_BY(mutex_);
  SteadyTime last_tick_ ABSL_GUARDED_BY(mutex_);
  SteadyTime next_purge_ ABSL_GUARDED_BY(mutex_);
  bool store_usable_ ABSL_GUARDED_BY(mutex_) = true;
  struct Asker {
    std::string request;  // may be empty
    TraceContext trace;
  };
  // Requests of which a grant lives, and the way back.
  absl::flat_hash_map<std::string, std::vector<std::string>> grants_of_request_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Asker> asker_of_grant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::global_store
