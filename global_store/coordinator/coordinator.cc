#include "global_store/coordinator/coordinator.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {
namespace {

constexpr absl::Duration kPurgeInterval = absl::Minutes(10);

PurgeTimes OldAt(absl::Time now) {
  return {.requests = now - kRequestAge,
          .tombstones = now - kTombstoneAge,
          .versions = now - kVersionTombstoneAge,
          .tasks = now - kTaskAge};
}

uint64_t NewEpoch() {
  uint64_t epoch = 0;
  FillRandom(&epoch, sizeof(epoch));
  return epoch | 1;  // never 0
}

}  // namespace

std::string RandomSecrets::NewGrantId() { return NewUuid(); }

std::string RandomSecrets::NewGrantKey() {
  std::string key(32, '\0');
  FillRandom(key.data(), key.size());
  return key;
}

Coordinator::Coordinator(const CoordinatorOptions& options, MetadataStore* store, Secrets* secrets)
    : options_(options),
      store_(store),
      epoch_(options.epoch != 0 ? options.epoch : NewEpoch()),
      directory_(options.directory, secrets),
      last_tick_(options.clock()),
      next_purge_(options.clock() + kPurgeInterval) {}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const CoordinatorOptions& options,
                                                                 MetadataStore* store, Secrets* secrets) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(options, store, secrets));
  const absl::Time now = coordinator->wall_now();
  const absl::Status purged = store->Purge(OldAt(now));
  // On a full disk nothing can be dropped, and nothing need be: what is there can be read.
  if (!absl::IsResourceExhausted(purged)) TC_RETURN_IF_ERROR(purged);
  TC_RETURN_IF_ERROR(coordinator->Load());
  return coordinator;
}

absl::Status Coordinator::Load() {
  TC_ASSIGN_OR_RETURN(const DurableFacts facts, store_->Load());
  cluster_id_ = facts.cluster_id;
  if (cluster_id_.empty()) {
    DurableFacts identity;
    identity.cluster_id = NewUuid();
    const absl::Status written = store_->Commit({.facts = identity});
    if (written.ok()) cluster_id_ = identity.cluster_id;
    // What is there can be read on a full disk, too; only archives need the id.
    if (!absl::IsResourceExhausted(written)) TC_RETURN_IF_ERROR(written);
  }
  absl::MutexLock lock(&mutex_);
  directory_.Load(facts, options_.clock());
  const DirectoryCounts counts = directory_.counts();
  LOG(INFO) << "metadata store " << store_->name() << " has " << counts.artifacts << " artifacts and "
            << counts.keys << " keys";
  return absl::OkStatus();
}

// A durable change has three steps. Mutate answers a repeated request from its record. Plan checks the change
// against the directory and claims its names. Make commits the change without a lock and then applies it. A
// crash before the commit leaves nothing. A crash after the commit loses nothing: the next process loads the
// directory from the store, and a repetition of the request finds its record.
absl::StatusOr<std::string> Coordinator::Mutate(std::string_view request, Prepare prepare) {
  if (request.empty()) return Make(request, prepare);
  // A repetition that comes while the first is being committed waits, and finds its record.
  {
    absl::MutexLock lock(&write_mutex_);
    const auto alone = [&]()
                           ABSL_SHARED_LOCKS_REQUIRED(write_mutex_) { return !requests_.contains(request); };
    write_mutex_.Await(absl::Condition(&alone));
    requests_.emplace(request);
  }
  const absl::Cleanup ended = [&] {
    absl::MutexLock lock(&write_mutex_);
    requests_.erase(request);
  };
  // The lookup needs no lock: `requests_` keeps other threads from committing a record of this request.
  TC_ASSIGN_OR_RETURN(std::optional<std::string> recorded, store_->FindResponse(request));
  if (recorded.has_value()) return *std::move(recorded);
  return Make(request, prepare);
}

absl::StatusOr<Change> Coordinator::Plan(Prepare prepare, absl::Time wall_now, ClaimedNames& names) {
  absl::MutexLock write_lock(&write_mutex_);
  // A purge drops old facts that a plan may have been made from, so no plan is admitted while one waits for
  // its turn.
  const auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(write_mutex_) {
    return !purging_ && under_way_.AreFree(names);
  };
  while (true) {
    absl::StatusOr<Change> change = absl::UnknownError("not prepared");
    {
      absl::MutexLock lock(&mutex_);
      change = prepare(directory_, wall_now);
    }
    TC_RETURN_IF_ERROR(change.status());
    names = NamesOf(change->facts, change->artifacts);
    if (free()) {
      under_way_.Take(names);
      return change;
    }
    // Await gives up `write_mutex_`, so that the running change can be applied.
    // Another change is about to replace what this plan was made from. The plan is made again once that one
    // is applied.
    write_mutex_.Await(absl::Condition(&free));
  }
}

absl::StatusOr<std::string> Coordinator::Make(std::string_view request, Prepare prepare) {
  const absl::Time wall_now = options_.wall_clock();
  // Planned with the directory still; the plan stays right until it is applied, since what it touches is
  // claimed. So the commit waits for the disk, or for etcd, with no mutex held, beside others.
  ClaimedNames names;
  TC_ASSIGN_OR_RETURN(Change change, Plan(prepare, wall_now, names));
  WriteBatch batch{.facts = change.facts, .manifests = change.manifests, .request = std::nullopt};
  // The answer is committed in the same transaction as the facts, so the store never has one without the
  // other.
  if (!request.empty()) batch.request = RequestRecord{std::string(request), change.response, wall_now};
  absl::Status committed;
  if (!batch.facts.empty() || !batch.manifests.empty() || batch.request.has_value()) {
    committed = store_->Commit(batch);
  }
  {
    absl::MutexLock write_lock(&write_mutex_);
    // Nothing was applied yet: where the commit failed (a full disk) the directory is as before, and the
    // caller may try again.
    if (committed.ok()) {
      {
        absl::MutexLock lock(&mutex_);
        // Queued with the lock under which it was applied, so that watchers hear of a key's changes in order.
        for (const KeyRecord& key : change.facts.keys) {
          if (IsNews(key)) untold_keys_.push_back(key);
        }
        directory_.Apply(change.facts, options_.clock());
        if (change.also_apply) change.also_apply(directory_);
        NoteEndedGrants();
      }
      TellOfTasks();
    }
    under_way_.Release(names);
  }
  TC_RETURN_IF_ERROR(committed);
  // The names are released before: watchers may be slow, and no change waits for them.
  TellOfKeys();
  return std::move(change.response);
}

bool Coordinator::IsNews(const KeyRecord& key) const {
  const absl::StatusOr<KeyRecord> before = directory_.catalog().ResolveKey(key.name);
  return key.deleted || !before.ok() || before->revision != key.revision;
}

void Coordinator::TellOfKeys() {
  while (true) {
    // Checked after the telling mutex was free, so a change that came while it was held is told by its
    // holder.
    {
      absl::MutexLock write_lock(&write_mutex_);
      if (untold_keys_.empty()) return;
    }
    if (!key_tell_mutex_.TryLock()) return;
    std::vector<KeyRecord> untold;
    {
      absl::MutexLock write_lock(&write_mutex_);
      untold.swap(untold_keys_);
    }
    for (const KeyRecord& record : untold) key_watches_.Tell(record);
    key_tell_mutex_.Unlock();
  }
}

absl::StatusOr<GrantOffer> Coordinator::RequestGrant(std::string_view request, const GrantRequest& wanted) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = options_.clock();
  // The receiver did not hear the answer. Other grants would count against their sources until they expire.
  if (std::optional<GrantOffer> repeated =
          grant_askers_.RepeatedOffer(request, directory_.transfers(), now)) {
    return *std::move(repeated);
  }
  TC_ASSIGN_OR_RETURN(GrantOffer offer, directory_.RequestGrant(wanted, now));
  grant_askers_.NoteGranted(request, offer);
  return offer;
}

// Called after whatever may end a grant: the directory, which keeps no log, has noted those that ended until
// they are taken here.
void Coordinator::NoteEndedGrants() {
  for (const EndedGrant& ended : directory_.transfers().grants().TakeEnded()) grant_askers_.NoteEnded(ended);
}

uint64_t Coordinator::Watch(std::shared_ptr<const KeyWatcher> watcher) {
  uint64_t id = 0;
  {
    absl::MutexLock tell_lock(&key_tell_mutex_);
    std::vector<KeyRecord> untold;
    std::vector<KeyRecord> records;
    {
      absl::MutexLock write_lock(&write_mutex_);  // no change falls between these two
      untold.swap(untold_keys_);
      absl::MutexLock lock(&mutex_);
      if (watcher->key.empty()) {
        records = directory_.catalog().ListKeys(watcher->prefix, "", SIZE_MAX);
      } else if (absl::StatusOr<KeyRecord> record = directory_.catalog().ResolveKey(watcher->key);
                 record.ok()) {
        records.push_back(*std::move(record));
      }
    }
    // What the new watcher is listed includes what the others have yet to hear.
    for (const KeyRecord& record : untold) key_watches_.Tell(record);
    for (const KeyRecord& record : records) watcher->on_change(record);
    if (watcher->on_listed != nullptr) watcher->on_listed();
    id = key_watches_.Add(std::move(watcher));
  }
  // Threads that found `key_tell_mutex_` taken meanwhile left their changes to this thread.
  TellOfKeys();
  return id;
}

uint64_t Coordinator::WatchReplicationTasks(std::shared_ptr<const TaskWatcher> watcher) {
  absl::MutexLock tell_lock(&tell_mutex_);
  std::vector<TaskView> views;
  {
    absl::MutexLock lock(&mutex_);
    views = directory_.tasks().List(watcher->artifact_id, "", SIZE_MAX);
  }
  for (TaskView& view : views) watcher->on_change({.task = std::move(view)});
  if (watcher->on_listed != nullptr) watcher->on_listed();
  return task_watches_.Add(std::move(watcher));
}

void Coordinator::TellOfTasks() {
  absl::MutexLock tell_lock(&tell_mutex_);
  std::vector<TaskChange> changes;
  {
    absl::MutexLock lock(&mutex_);
    changes = directory_.tasks().TakeChanged();
  }
  for (const TaskChange& change : changes) task_watches_.Tell(change);
}

void Coordinator::Tick(bool behind) {
  const SteadyTime now = options_.clock();
  bool purge = false;
  {
    absl::MutexLock lock(&mutex_);
    // No node was heard because none was listened to: the process was stopped, or the machine asleep.
    const absl::Duration gap = now - last_tick_;
    const bool stopped = gap > options_.directory.membership.node_ttl / 2;
    LOG_IF(WARNING, stopped) << "the global store's process did not run for " << gap
                             << ", so nodes get that much more time to report; check the load of this host";
    // A node may have spoken in time, and wait.
    LOG_IF_EVERY_N_SEC(WARNING, behind, 10)
        << "reports of nodes still wait to be read, so the global store drops no silent node for now; "
           "check the load of this host and the metadata store";
    if (stopped || behind) directory_.ExtendLiveness(gap);
    last_tick_ = now;
    for (const NodeView& node : directory_.Tick(now)) {
      LOG(WARNING) << "node " << node.facts.name << " (" << node.facts.node_id << ") sent no heartbeat for "
                   << node.since_heartbeat
                   << ", so the global store no longer offers the node's replicas; check the node's daemon "
                      "and the network";
    }
    NoteEndedGrants();
    purge = now >= next_purge_;
    if (purge) next_purge_ = now + kPurgeInterval;
  }
  TellOfTasks();
  // Each of these steps takes the locks that it needs. Where its commit fails, a later tick does the work.
  CheckStore();
  SettleTasks();
  ReleaseVersions();
  if (purge) Purge();
}

void Coordinator::ReleaseVersions() {
  const SteadyTime now = options_.clock();
  {
    absl::MutexLock lock(&mutex_);
    if (!directory_.HasReleases(now)) return;
  }
  const absl::Status released =
      Mutate("", [now](const Directory& directory, absl::Time wall_now) -> absl::StatusOr<Change> {
        return Change{.facts = directory.PrepareReleases(now, wall_now)};
      }).status();
  LOG_IF_EVERY_N_SEC(WARNING, !released.ok(), 60)
      << "delete versions that no key keeps: " << released << "; the global store tries again";
}

void Coordinator::SettleTasks() {
  {
    absl::MutexLock lock(&mutex_);
    if (!directory_.tasks().HasToSettle()) return;
  }
  const absl::Status settled =
      Mutate("", [](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
        return Change{.facts = directory.tasks().PrepareSettle(now)};
      }).status();
  LOG_IF_EVERY_N_SEC(WARNING, !settled.ok(), 60)
      << "write the results of tasks to the metadata store: " << settled << "; the global store tries again";
}

void Coordinator::CheckStore() {
  // The check may look at the disk, so it is made without the lock.
  const absl::Status usable = store_->Check();
  absl::MutexLock lock(&mutex_);
  if (usable.ok() == store_usable_) return;
  store_usable_ = usable.ok();
  LOG_IF(ERROR, !usable.ok()) << usable.message();
  LOG_IF(INFO, usable.ok()) << "metadata store " << store_->name() << " can be used again";
}

void Coordinator::Purge() {
  PurgeTimes before = OldAt(options_.wall_clock());
  absl::MutexLock write_lock(&write_mutex_);
  // What is old may be what a change under way was planned from.
  purging_ = true;
  const auto still = [this]() ABSL_SHARED_LOCKS_REQUIRED(write_mutex_) { return under_way_.empty(); };
  write_mutex_.Await(absl::Condition(&still));
  // Await gave up `write_mutex_` while it waited, hence the flag. From here on the mutex itself keeps plans
  // out.
  purging_ = false;
  {
    absl::MutexLock lock(&mutex_);
    before.versions = directory_.catalog().VersionTombstonesFrom(before.versions);
  }
  // The store purges under `write_mutex_`, which delays every durable change. Reads and heartbeats only need
  // `mutex_` and go on.
  const absl::Status purged = store_->Purge(before);
  if (!purged.ok()) {
    LOG(WARNING) << "purge old requests: " << purged << "; the global store tries again";
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    // In the store first; where that fails the directory keeps what the store has.
    directory_.catalog().Purge(before.tombstones, before.versions);
    directory_.tasks().Purge(before.tasks);
    directory_.announcements().Purge(before.tombstones);
  }
  TellOfTasks();
}

}  // namespace tensorcast::global_store
