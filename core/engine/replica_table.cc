#include "core/engine/replica_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {

// Guarded by the table's mutex. Once the replica is ready, its id, artifact id, location, manifest, storage
// and `made_by` stay as they are until it is gone, which is why a lease may read them without the lock.
struct ReplicaRecord {
  ReplicaInfo info;
  std::shared_ptr<const Manifest> manifest;
  std::vector<bool> chunks;  // present ones
  bool reserved = false;     // the eviction guard is being asked about it
  uint64_t use_order = 0;
  Cancellation ingest;
  TraceContext made_by;
  ReplicaStorage storage;
};

namespace {

// A replica leaves the table when it is gone, so an id that was evicted and one that never was look the same.
absl::Status NoSuchReplica(std::string_view id) {
  return absl::NotFoundError(absl::StrCat("no replica ", id, " on this node: it was evicted, or never here"));
}

ReplicaMemory MemoryOf(const ReplicaStorage& storage) {
  ReplicaMemory memory;
  memory.host = storage.host.get();
  memory.device = storage.device.pointer();
  if (storage.file != nullptr) {
    memory.file = storage.file->fd();
    memory.file_image_offset = storage.file->image_offset();
  }
  return memory;
}

}  // namespace

ReplicaTable::~ReplicaTable() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, record] : records_) {
    CHECK_EQ(record->info.leases, 0u) << "replica " << id << " is still leased while the engine is destroyed";
  }
}

void ReplicaTable::Move(ReplicaRecord& record, ReplicaState to) {
  CHECK(IsLegalTransition(record.info.state, to))
      << "replica " << record.info.id << ": " << ReplicaStateName(record.info.state) << " -> "
      << ReplicaStateName(to);
  record.info.state = to;
  Notify(record);
}

void ReplicaTable::Notify(const ReplicaRecord& record) {
  notifier_->ReplicaChanged(record.info, record.manifest);
}

void ReplicaTable::Touch(ReplicaRecord& record) {
  record.info.last_used = SteadyNow();
  // Two uses can fall into one tick of the clock; the count orders them all the same.
  record.use_order = ++uses_;
}

ReplicaTable::RecordPtr ReplicaTable::Get(std::string_view id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second;
}

ReplicaTable::RecordPtr ReplicaTable::FindReady(std::string_view artifact_id, Location location) const {
  for (const auto& [id, record] : records_) {
    if (record->info.state == ReplicaState::kReady && record->info.location == location &&
        record->info.artifact_id == artifact_id) {
      return record;
    }
  }
  return nullptr;
}

// What can be done before the lock is: only the entry itself and the news of it need to be in order.
void ReplicaTable::Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
                       TraceContext made_by) {
  auto record = std::make_shared<ReplicaRecord>();
  record->info = std::move(replica);
  record->info.ready_since = SteadyTime::InfiniteFuture();
  record->info.node_id = node_id_;
  if (record->info.location.kind == LocationKind::kGpu) {
    record->info.device_uuid = devices_->devices()[record->info.location.device].uuid;
  }
  record->manifest = std::move(manifest);
  record->chunks.assign(record->info.chunks_total, false);
  record->ingest = std::move(ingest);
  record->made_by = std::move(made_by);
  absl::MutexLock lock(&mutex_);
  Touch(*record);
  Notify(*record);
  CHECK(records_.emplace(record->info.id, record).second) << "replica id " << record->info.id << " is taken";
}

void ReplicaTable::StartFilling(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr) << "replica " << id;
  Move(*record, ReplicaState::kFilling);
}

void ReplicaTable::AddChunk(std::string_view id, uint32_t chunk) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr && record->info.state == ReplicaState::kFilling) << "replica " << id;
  CHECK(chunk < record->chunks.size() && !record->chunks[chunk]) << "replica " << id << ", chunk " << chunk;
  record->chunks[chunk] = true;
  ++record->info.chunks_present;
}

void ReplicaTable::Fail(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr) << "replica " << id;
  Move(*record, ReplicaState::kFailed);
  records_.erase(record->info.id);
  ++space_events_;
}

// Where two ingests made the same artifact at one location (a first ingest learns its artifact id only now,
// and an ingest that is being cancelled may still end well), the first one here wins. Look-up and move are
// under one lock, so that there is never a second ready replica.
std::unique_ptr<ReplicaLease> ReplicaTable::MakeReady(std::string_view id,
                                                      std::shared_ptr<const Manifest> manifest,
                                                      ReplicaStorage storage) {
  std::unique_ptr<ReplicaLease> lease;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    CHECK(record != nullptr) << "replica " << id;
    CHECK_EQ(record->info.chunks_present, record->chunks.size()) << "replica " << id << " is not complete";
    const RecordPtr existing = FindReady(manifest->id(), record->info.location);
    if (existing == nullptr) {
      record->info.artifact_id = manifest->id();
      record->manifest = std::move(manifest);
      record->storage = std::move(storage);
      Touch(*record);
      record->info.ready_since = SteadyNow();
      Move(*record, ReplicaState::kReady);
      return LeaseLocked(record);
    }
    Move(*record, ReplicaState::kFailed);
    records_.erase(record->info.id);
    pool = record->info.location;
    ++freeing_[pool];
    lease = LeaseLocked(existing);
  }
  FreeStorage(std::move(storage), pool);
  return lease;
}

void ReplicaTable::AddPackedFile(std::shared_ptr<PackedFile> file) {
  auto record = std::make_shared<ReplicaRecord>();
  record->manifest = file->manifest();
  const ImageLayout& layout = record->manifest->layout();
  record->info = {.id = NewUuid(),
                  .artifact_id = record->manifest->id(),
                  .node_id = node_id_,
                  .location = {LocationKind::kDisk, 0},
                  .state = ReplicaState::kReady,
                  .image_bytes = layout.image_bytes,
                  .chunks_total = layout.chunk_count(),
                  .chunks_present = layout.chunk_count(),
                  .ready_since = SteadyNow()};
  record->chunks.assign(layout.chunk_count(), true);
  record->storage.file = std::move(file);
  absl::MutexLock lock(&mutex_);
  Touch(*record);
  Notify(*record);
  records_.emplace(record->info.id, record);
}

absl::Status ReplicaTable::Drain(std::string_view id, const DrainOptions& options) {
  ReplicaStorage storage;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    if (record == nullptr) return NoSuchReplica(id);
    if (record->info.state == ReplicaState::kDraining && !options.only_idle) return absl::OkStatus();
    if (record->info.state != ReplicaState::kReady) {
      return absl::FailedPreconditionError(absl::StrCat(
          "replica ", id, " is ", ReplicaStateName(record->info.state), ": only a ready one can be evicted"));
    }
    if (record->info.pinned && !options.even_pinned) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " is pinned: unpin it first"));
    }
    if (record->info.leases > 0 && options.only_idle) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " was leased meanwhile"));
    }
    Move(*record, ReplicaState::kDraining);
    if (record->info.leases > 0) return absl::OkStatus();
    pool = record->info.location;
    storage = TakeGone(record);
  }
  FreeStorage(std::move(storage), pool);
  return absl::OkStatus();
}

// The caller frees what it gets by FreeStorage, after the lock: unmapping gigabytes or freeing device memory
// takes long. Until then `freeing_` says that the space is on its way.
ReplicaStorage ReplicaTable::TakeGone(const RecordPtr& record) {
  Move(*record, ReplicaState::kGone);
  records_.erase(record->info.id);
  ++freeing_[record->info.location];
  return std::move(record->storage);
}

void ReplicaTable::FreeStorage(ReplicaStorage storage, Location pool) {
  // First the memory, then the event: whoever is woken must find the space.
  storage = ReplicaStorage();
  absl::MutexLock lock(&mutex_);
  --freeing_[pool];
  ++space_events_;
}

absl::Status ReplicaTable::SetPinned(std::string_view id, bool pinned) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr) return NoSuchReplica(id);
  if (record->info.state == ReplicaState::kDraining) {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", id, " is being evicted; materialize it again"));
  }
  if (record->info.pinned != pinned) {
    record->info.pinned = pinned;
    // Unpinned, it may be evicted: a chance for who waits for space.
    space_events_ += pinned ? 0 : 1;
    Notify(*record);
  }
  return absl::OkStatus();
}

ReplicaLease::ReplicaLease(ReplicaTable* table, std::shared_ptr<ReplicaRecord> record)
    : table_(table), record_(std::move(record)), memory_(MemoryOf(record_->storage)) {}

ReplicaLease::~ReplicaLease() { table_->EndLease(record_); }

const std::string& ReplicaLease::replica_id() const { return record_->info.id; }
const Location& ReplicaLease::location() const { return record_->info.location; }
const std::shared_ptr<const Manifest>& ReplicaLease::manifest() const { return record_->manifest; }
const TraceContext& ReplicaLease::made_by() const { return record_->made_by; }

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseLocked(const RecordPtr& record) {
  ++record->info.leases;
  Touch(*record);
  return std::unique_ptr<ReplicaLease>(new ReplicaLease(this, record));
}

// Each lease that ends is an event: whether the replica drains or is now idle, there may be room to be had.
void ReplicaTable::EndLease(const RecordPtr& record) {
  ReplicaStorage storage;
  {
    absl::MutexLock lock(&mutex_);
    --record->info.leases;
    Touch(*record);
    ++space_events_;
    if (record->info.state != ReplicaState::kDraining || record->info.leases > 0) return;
    storage = TakeGone(record);
  }
  FreeStorage(std::move(storage), record->info.location);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Lease(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr || record->info.state != ReplicaState::kReady) {
    return absl::NotFoundError(absl::StrCat("no ready replica ", id, " on this node",
                                            record == nullptr ? "" : ": it is ",
                                            record == nullptr ? "" : ReplicaStateName(record->info.state)));
  }
  return LeaseLocked(record);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Lease(std::string_view artifact_id,
                                                                  Location location) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = FindReady(artifact_id, location);
  if (record == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no ready replica of ", artifact_id, " at ", location.ToString(), " on this node"));
  }
  return LeaseLocked(record);
}

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseAnywhere(std::string_view artifact_id,
                                                          const std::set<Location>& except) {
  auto rank = [](LocationKind kind) {
    return kind == LocationKind::kCpu ? 0 : kind == LocationKind::kGpu ? 1 : 2;
  };
  absl::MutexLock lock(&mutex_);
  RecordPtr best;
  for (const auto& [id, record] : records_) {
    if (record->info.state == ReplicaState::kReady && record->info.artifact_id == artifact_id &&
        !except.contains(record->info.location) &&
        (best == nullptr || rank(record->info.location.kind) < rank(best->info.location.kind))) {
      // Of equal rank any will do.
      best = record;
    }
  }
  return best == nullptr ? nullptr : LeaseLocked(best);
}

bool ReplicaTable::Evictable(const ReplicaRecord& record) const {
  return record.info.state == ReplicaState::kReady && record.info.leases == 0 && !record.info.pinned &&
         !record.reserved;
}

std::optional<ReplicaInfo> ReplicaTable::ReserveVictim(Location pool, const std::set<std::string>& refused) {
  absl::MutexLock lock(&mutex_);
  RecordPtr victim;
  for (const auto& [id, record] : records_) {
    if (record->info.location == pool && Evictable(*record) && !refused.contains(id) &&
        (victim == nullptr || record->use_order < victim->use_order)) {
      victim = record;
    }
  }
  if (victim == nullptr) return std::nullopt;
  victim->reserved = true;
  return victim->info;
}

void ReplicaTable::Unreserve(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  if (const RecordPtr record = Get(id); record != nullptr) {
    record->reserved = false;
    ++space_events_;
  }
}

PoolHolders ReplicaTable::Holders(Location pool) const {
  absl::MutexLock lock(&mutex_);
  PoolHolders holders;
  const auto freeing = freeing_.find(pool);
  holders.in_flux = freeing != freeing_.end() && freeing->second > 0;
  auto add = [](PoolHolders::Share& share, const ReplicaRecord& record) {
    ++share.replicas;
    share.bytes += (record.info.image_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  };
  for (const auto& [id, record] : records_) {
    if (record->info.location != pool) continue;
    if (record->info.state == ReplicaState::kAllocating || record->info.state == ReplicaState::kFilling) {
      // A cancelled ingest gives its memory back by itself soon.
      holders.in_flux |= record->ingest.IsCancelled();
      if (record->info.state == ReplicaState::kFilling) add(holders.filling, *record);
    } else if (record->info.leases > 0) {
      add(holders.leased, *record);
    } else if (record->info.pinned) {
      add(holders.pinned, *record);
    } else {
      // The guard is being asked: the replica either goes, or is idle again; both end in an event.
      holders.in_flux |= record->reserved;
      add(holders.idle, *record);
    }
  }
  return holders;
}

uint64_t ReplicaTable::space_events() const {
  absl::MutexLock lock(&mutex_);
  return space_events_;
}

// The condition reads the cancellation, which this mutex does not guard. Taking the mutex in the callback,
// and giving it back, is what makes absl look at the condition again.
void ReplicaTable::WaitForSpace(uint64_t seen, const RequestContext& context) {
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto changed = [this, seen, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return space_events_ != seen || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(context.deadline));
}

std::vector<ReplicaInfo> ReplicaTable::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : records_) list.push_back(record->info);
  std::sort(list.begin(), list.end(), [](const ReplicaInfo& a, const ReplicaInfo& b) {
    return std::tie(a.artifact_id, a.location, a.id) < std::tie(b.artifact_id, b.location, b.id);
  });
  return list;
}

absl::StatusOr<ReplicaInfo> ReplicaTable::Find(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr) return NoSuchReplica(id);
  return record->info;
}

std::vector<ReplicaInfo> ReplicaTable::FindArtifact(std::string_view artifact_id) const {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : records_) {
    if (record->info.artifact_id == artifact_id) list.push_back(record->info);
  }
  return list;
}

absl::StatusOr<std::shared_ptr<const Manifest>> ReplicaTable::FindManifest(
    std::string_view artifact_id) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, record] : records_) {
    if (record->info.artifact_id == artifact_id && record->manifest != nullptr) return record->manifest;
  }
  return absl::NotFoundError(absl::StrCat("no replica of ", artifact_id, " on this node"));
}

}  // namespace tensorcast
