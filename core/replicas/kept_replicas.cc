#include "core/replicas/kept_replicas.h"

#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"

namespace tensorcast {

// An entry goes: waiting - taken (by the background thread or by an ingest, whichever comes first) - gone
// from `entries_`, when its replica is in the table or its memory is free. Other threads that want it wait
// for that.
KeptReplicas::~KeptReplicas() { Stop(); }

void KeptReplicas::Start(std::vector<KeptReplica> replicas, OnKeptSettled on_settled) {
  on_settled_ = std::move(on_settled);
  uint64_t bytes = 0;
  absl::MutexLock lock(&mutex_);
  for (KeptReplica& replica : replicas) {
    bytes += replica.memory.bytes();
    const std::string id = replica.manifest->id();
    entries_.emplace(id, std::make_shared<Entry>(Entry{.replica = std::move(replica)}));
  }
  if (entries_.empty()) return;
  try {
    thread_ = std::thread([this, bytes, begin = SteadyNow()] {
      SettleAll();
      LOG(INFO) << "verify the replicas that an earlier daemon kept: " << bytes
                << " bytes were compared with their digests in " << SteadyNow() - begin;
    });
  } catch (const std::system_error& error) {
    LOG(WARNING)
        << "verify the replicas that an earlier daemon kept: no thread can be started (" << error.what()
        << "), so each replica is verified when a request needs it; raise the limit of threads (`ulimit -u`)";
  }
}

void KeptReplicas::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void KeptReplicas::Settle(std::string_view artifact_id, bool wanted) {
  std::shared_ptr<Entry> entry;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(artifact_id);
    if (found == entries_.end() || stopping_) return;
    entry = found->second;
    // Another thread compares it already, and is waited for.
    if (std::exchange(entry->taken, true)) {
      const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !entries_.contains(artifact_id);
      };
      mutex_.Await(absl::Condition(&settled));
      return;
    }
  }
  Compare(entry, wanted);
}

// Called by the background thread, and by an ingest that found no room; both may run at once and share the
// entries.
bool KeptReplicas::SettleAll() {
  bool any = false;
  while (true) {
    std::string next;
    {
      absl::MutexLock lock(&mutex_);
      if (entries_.empty() || stopping_) return any;
      // One that is not compared yet, where there is one; else the end of a comparison is awaited.
      next = entries_.begin()->first;
      for (const auto& [id, entry] : entries_) {
        if (!entry->taken) next = id;
      }
    }
    Settle(next, /*wanted=*/false);
    any = true;
  }
}

void KeptReplicas::Compare(const std::shared_ptr<Entry>& entry, bool wanted) {
  const std::string id = entry->replica.manifest->id();
  // While this is not zero the background waits between two chunks (LetWantedPass).
  if (wanted) ++wanted_;
  const bool matches = Matches(entry->replica, wanted);
  if (wanted) {
    absl::MutexLock lock(&mutex_);  // so that a thread that waits for it looks again
    --wanted_;
  }
  // The comparison may have been given up, so its result says nothing.
  if (stopping_) return;
  LOG_IF(ERROR, !matches) << "verify the replica of " << id
                          << " that an earlier daemon kept: the replica does not match its digests, and is "
                             "not served; get the artifact again";
  std::unique_ptr<ReplicaLease> added;
  {
    // One step with Forget, which removes the artifact's replicas from the table after it returns: a replica
    // that is added in between would stay.
    absl::MutexLock lock(&mutex_);
    if (matches && !entry->forgotten) {
      added = table_->AddKept(entry->replica.manifest, std::move(entry->replica.memory));
    }
  }
  on_settled_(id, std::move(added));
  // Only now: `on_settled_` takes over the memory that processes still map, which is possible as long as it
  // is allocated. Once it is free, its segment may be replaced.
  entry->replica.memory = HostAllocation();
  // Last: a request that waits for the entry to go then finds the replica in the table.
  absl::MutexLock lock(&mutex_);
  entries_.erase(id);
}

// By chunk, so that no thread waits for long.
void KeptReplicas::LetWantedPass() const {
  if (wanted_ == 0) return;
  absl::MutexLock lock(&mutex_);
  const auto passed = [this] { return wanted_ == 0 || stopping_; };
  mutex_.Await(absl::Condition(&passed));
}

// All threads take chunks from one counter, so they end at about the same time.
bool KeptReplicas::Matches(const KeptReplica& replica, bool wanted) const {
  std::atomic<uint32_t> next_chunk{0};
  std::atomic<bool> all{true};
  const auto compare = [&] {
    if (!MatchesFrom(replica, wanted, next_chunk)) all = false;
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads_; ++i) others.emplace_back(compare);
  } catch (const std::system_error& error) {
    LOG(WARNING) << "verify the replicas that an earlier daemon kept: only " << others.size() + 1 << " of "
                 << threads_ << " threads can be started (" << error.what()
                 << "); raise the limit of threads (`ulimit -u`)";
  }
  compare();
  for (std::thread& other : others) other.join();
  return all;
}

bool KeptReplicas::MatchesFrom(const KeptReplica& replica, bool wanted,
                               std::atomic<uint32_t>& next_chunk) const {
  const ImageLayout& layout = replica.manifest->layout();
  // XXH3 alone: the memory was verified before, and this finds accidents.
  DigestBuilder digest;
  for (uint32_t chunk = next_chunk++; chunk < layout.chunk_count(); chunk = next_chunk++) {
    if (!wanted) LetWantedPass();
    if (stopping_) return false;
    const ByteRange range = layout.chunk(chunk);
    digest.Reset();
    for (const HostSpan& span : replica.memory.Spans(range.offset, range.bytes)) digest.Update(span);
    if (digest.Finish() != replica.manifest->digests()[chunk].xxh3) {
      // The other threads find nothing left to compare.
      next_chunk = layout.chunk_count();
      return false;
    }
  }
  return true;
}

void KeptReplicas::Forget(std::string_view artifact_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(artifact_id);
  if (found != entries_.end()) found->second->forgotten = true;
}

std::shared_ptr<const Manifest> KeptReplicas::FindManifest(std::string_view artifact_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(artifact_id);
  return found == entries_.end() || found->second->forgotten ? nullptr : found->second->replica.manifest;
}

}  // namespace tensorcast
