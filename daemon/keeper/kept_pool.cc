#include "daemon/keeper/kept_pool.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <variant>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "daemon/keeper/kept_record.h"

namespace tensorcast::daemon {

// The start of a daemon goes through these steps once, on one thread: Open reads what the keeper holds,
// PreviousPool chooses the segments that the new pool maps, Attach adopts the replicas in them and has the
// keeper drop the rest, and TakeReplicas gives the replicas to the engine. The engine compares each of them
// with its digests and calls OnSettled. Until then the keeper holds everything that is taken back, so a
// daemon that dies on the way leaves it to the next one.
absl::StatusOr<std::unique_ptr<KeptPool>> KeptPool::Open(const std::string& socket,
                                                         std::vector<std::string> argv) {
  std::unique_ptr<KeptPool> pool(new KeptPool(socket, std::move(argv)));
  TC_ASSIGN_OR_RETURN(std::vector<KeptDescriptor> all, pool->keeper_.Open());
  pool->previous_ = PreviousPool(std::move(all));
  {
    absl::MutexLock lock(&pool->mutex_);
    pool->status_.set_gone_on_gpus(pool->previous_.gone_on_gpus());
  }
  return pool;
}

void KeptPool::OnReplaced(const PoolSegment& made, const std::string& made_name,
                          const std::string& gone_name) {
  // In this order the keeper never holds both, so that the next daemon does not count memory twice.
  keeper_.Drop(SegmentName(gone_name));
  keeper_.Put(SegmentName(made_name), Duplicate(made.fd));
}

void KeptPool::Attach(HostPool* pool) {
  pool_ = pool;
  for (const PreviousPool::Replica* found : previous_.FindWithoutRoom(*pool)) {
    LOG(WARNING) << "discard the kept replica of " << found->manifest->id()
                 << ": the host pool has no room for the replica; get the artifact again";
  }
  PreviousPool::Contents previous = previous_.TakeContents();
  std::set<std::string> stay;
  // Everything that is taken back is named in `stay`; at the end the keeper is told to drop the rest.
  for (PreviousPool::Replica& found : previous.replicas) {
    absl::StatusOr<HostAllocation> memory =
        pool->Adopt(found.manifest->layout().image_bytes, found.record.extents);
    if (!memory.ok()) {
      LOG(INFO) << "drop the kept memory of " << found.manifest->id() << ": " << memory.status().message();
      continue;
    }
    stay.insert(RecordName(found.manifest->id()));
    replicas_.push_back({std::move(found.manifest), *std::move(memory)});
  }
  const std::string size = absl::StrCat(kSizePrefix, pool->bytes());
  stay.insert(size);
  keeper_.Put(size, WriteKept(""));
  for (size_t i = 0; i < pool->segments().size(); ++i) {
    stay.insert(SegmentName(pool->segment_name(i)));
    if (pool->kind(i) == SegmentKind::kOwn) {
      keeper_.Put(SegmentName(pool->segment_name(i)), Duplicate(pool->segments()[i].fd));
    }
  }
  AttachHolders(previous, stay);
  for (const std::string& name : previous.names) {
    if (!stay.contains(name)) keeper_.Drop(name);
  }
  // A kept segment without a replica makes way for a writable one.
  pool->DropUnusedKept();
}

// Processes that are attached to replicas which are taken back wait for the outcome. Others map memory in
// which nothing is served.
void KeptPool::AttachHolders(PreviousPool::Contents& previous, std::set<std::string>& stay) {
  std::vector<HostAllocation> room;
  for (const std::string& name : previous.room) {
    for (size_t i = 0; i < pool_->segments().size(); ++i) {
      if (pool_->segment_name(i) != name) continue;
      const uint64_t bytes = pool_->segments()[i].bytes;
      const std::vector<NamedExtent> whole = {
          {.image_offset = 0, .segment = name, .offset = 0, .bytes = bytes}};
      absl::StatusOr<HostAllocation> taken = pool_->Adopt(bytes, whole);
      if (taken.ok()) room.push_back(*std::move(taken));
    }
  }
  for (const auto& [segment, bytes] : previous.outside) stay.insert(SegmentName(segment));
  unserved_.Open(pool_, std::move(previous.outside), std::move(room));
  // A live commit attaches its process anew to the same memory, which is of another artifact then. Where the
  // daemon was killed before it dropped the earlier attachment, the later one counts alone.
  const auto is_here = [&](const Attachment& holder) {
    return stay.contains(RecordName(holder.artifact_id));
  };
  std::set<std::pair<pid_t, std::vector<std::string>>> here;
  for (const Attachment& holder : previous.holders) {
    if (holder.pid > 0 && is_here(holder)) here.insert({holder.pid, holder.segments});
  }
  std::erase_if(previous.holders, [&](const Attachment& holder) {
    return !is_here(holder) && here.contains({holder.pid, holder.segments});
  });
  for (Attachment& holder : previous.holders) {
    const std::vector<std::string> names = NamesOf(holder);
    stay.insert(names.begin(), names.end());
    if (!is_here(holder)) {
      unserved_.Add(std::move(holder));
      continue;
    }
    absl::MutexLock lock(&mutex_);
    held_[holder.artifact_id].holders.push_back(std::move(holder));
  }
  absl::MutexLock lock(&mutex_);
  status_.set_replicas(static_cast<uint32_t>(replicas_.size()));
  status_.set_waiting(status_.replicas());
}

std::vector<KeptReplica> KeptPool::TakeReplicas() { return std::move(replicas_); }

void KeptPool::SetEngine(StoreEngine* engine) {
  absl::MutexLock lock(&mutex_);
  engine_ = engine;
}

void KeptPool::Stop() {
  absl::flat_hash_map<std::string, Held> held;  // their leases end without the lock
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    engine_ = nullptr;
    held.swap(held_);
  }
  if (pool_ == nullptr) return;
  // From here on nothing may change with the keeper: what it holds now is what the next daemon finds. So no
  // segment is exchanged any more when the leases end below.
  pool_->StopReplacing();
  unserved_.Stop();
  held.clear();
  replicas_.clear();  // of a start that failed
}

void KeptPool::OnSettled(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease) {
  const bool matched = lease != nullptr;
  std::vector<Attachment> unserved;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    status_.set_waiting(status_.waiting() - 1);
    status_.set_mismatched(status_.mismatched() + (matched ? 0 : 1));
    // The lease keeps the replica while the processes of before read it.
    const auto held = held_.find(artifact_id);
    if (held != held_.end() && matched) held->second.lease = std::move(lease);
    if (held != held_.end() && !matched) {
      unserved = std::move(held->second.holders);
      held_.erase(held);
    }
  }
  // The mutex is not held over calls of the keeper, which may wait for its socket.
  if (matched) return;
  keeper_.Drop(RecordName(artifact_id));
  for (Attachment& holder : unserved) unserved_.Add(std::move(holder));
}

void KeptPool::DropHolders(absl::FunctionRef<bool(const Attachment&)> goes) {
  std::vector<Attachment> gone;
  std::vector<std::unique_ptr<ReplicaLease>> leases;  // end without the lock
  {
    absl::MutexLock lock(&mutex_);
    for (auto held = held_.begin(); held != held_.end();) {
      // The next one is found before this one may be erased.
      const auto here = held++;
      std::vector<Attachment>& holders = here->second.holders;
      const auto stay = std::stable_partition(holders.begin(), holders.end(), std::not_fn(goes));
      std::move(stay, holders.end(), std::back_inserter(gone));
      holders.erase(stay, holders.end());
      if (!holders.empty()) continue;
      leases.push_back(std::move(here->second.lease));
      held_.erase(here);
    }
  }
  for (const Attachment& holder : gone) DropAttachment(keeper_, holder);
}

std::shared_ptr<void> KeptPool::NoteHolder(pid_t pid, UniqueFd process, const ReplicaHandles& handles) {
  auto holder = std::make_unique<Attachment>(Attachment{
      .id = NewUuid(), .pid = pid, .artifact_id = handles.artifact_id, .process = std::move(process)});
  // Segments are noted by name, since they get other numbers in the next pool.
  for (const SegmentHandle& segment : std::get<HostHandles>(handles.memory).segments) {
    holder->segments.push_back(pool_->segment_name(segment.number));
  }
  NoteAttachment(keeper_, *holder);
  holder->process = UniqueFd();  // the keeper's end has it
  DropHolders([&](const Attachment& before) {
    // A holder that has ended was another process with this number, and goes in Mend.
    return pid > 0 && before.pid == pid && before.artifact_id == handles.artifact_id && !before.ended();
  });
  // Only its end is looked at.
  return std::shared_ptr<Attachment>(holder.release(), [this](Attachment* noted) {
    const std::unique_ptr<Attachment> owned(noted);
    {
      absl::MutexLock lock(&mutex_);
      // The daemon is ending: its clients' connections close, but the clients go on reading, and the next
      // daemon has to know of them.
      if (stopped_) return;
    }
    DropAttachment(keeper_, *noted);
  });
}

void KeptPool::Mend() {
  keeper_.Mend();
  // What the processes of before held goes with them; those that attached to this daemon end with their
  // connections.
  DropHolders([](const Attachment& holder) { return holder.ended(); });
  unserved_.DropEnded();
}

v1::KeptPool KeptPool::status() const {
  absl::MutexLock lock(&mutex_);
  v1::KeptPool status = status_;
  const UnservedSegments::Stats unserved = unserved_.stats();
  size_t holders = unserved.holders;
  for (const auto& [artifact_id, held] : held_) holders += held.holders.size();
  status.set_awaited_holders(static_cast<uint32_t>(holders));
  status.set_unserved_bytes(unserved.bytes);
  uint64_t read_only_bytes = 0;
  for (size_t i = 0; pool_ != nullptr && i < pool_->segments().size(); ++i) {
    if (pool_->kind(i) == SegmentKind::kKept) read_only_bytes += pool_->segments()[i].bytes;
  }
  status.set_read_only_bytes(read_only_bytes);
  return status;
}

void KeptPool::OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) {
  if (replica.location.kind == LocationKind::kCpu && manifest != nullptr) Record(replica, *manifest);
  if (replica.location.kind == LocationKind::kGpu) RecordOnGpu(replica);
  next_->OnReplicaChanged(replica, manifest);
}

void KeptPool::OnTransferEnded(const TransferReport& report) { next_->OnTransferEnded(report); }

// Only so that the next daemon can say what went with this one.
void KeptPool::RecordOnGpu(const ReplicaInfo& replica) {
  const std::string name = absl::StrCat(kGpuPrefix, replica.id);
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
  }
  if (replica.state == ReplicaState::kGone) keeper_.Drop(name);
  if (replica.state != ReplicaState::kReady) return;
  keeper_.Put(name, WriteKept(""));
}

// A record that is there for a moment longer than its replica does no harm: nothing is served by it that does
// not match its digests.
void KeptPool::Record(const ReplicaInfo& replica, const Manifest& manifest) {
  StoreEngine* engine = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto recorded = recorded_.find(manifest.id());
    const bool known = recorded != recorded_.end() && recorded->second == replica.id;
    // Recorded and ready, or neither of them: nothing changes.
    if (engine_ == nullptr || known == (replica.state == ReplicaState::kReady)) return;
    if (replica.state == ReplicaState::kReady) {
      engine = engine_;
      recorded_.insert_or_assign(manifest.id(), replica.id);
    } else if (replica.state == ReplicaState::kGone) {
      recorded_.erase(recorded);
    } else {
      return;
    }
  }
  // Without the lock: the lease keeps the replica in its place until its record is with the keeper.
  if (engine == nullptr) return keeper_.Drop(RecordName(manifest.id()));
  const absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = engine->LeaseReplica(replica.id);
  if (!lease.ok() || replica.image_bytes == 0) return;  // it is on its way out; or there is nothing to keep
  keeper_.Put(RecordName(manifest.id()),
              WriteKept(EncodeRecord(
                  {.manifest = manifest.bytes(), .extents = pool_->Named(*(*lease)->memory().host)})));
}

}  // namespace tensorcast::daemon
