#include "core/engine/replica_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/engine/replica_record.h"

namespace tensorcast {
namespace {

absl::Status NoSuchReplica(std::string_view id) {
  return absl::NotFoundError(absl::StrCat("no replica ", id, " on this node: it was evicted, or never here"));
}

}  // namespace

ReplicaTable::~ReplicaTable() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, record] : records_) {
    CHECK_EQ(record->leases, 0u) << "replica " << id << " is still leased while the engine is destroyed";
  }
}

void ReplicaTable::Move(Record& record, ReplicaState to) {
  CHECK(IsLegalTransition(record.state, to))
      << "replica " << record.id << ": " << ReplicaStateName(record.state) << " -> " << ReplicaStateName(to);
  record.state = to;
  Notify(record);
}

void ReplicaTable::Notify(const Record& record) { notifier_->ReplicaChanged(Info(record), record.manifest); }

ReplicaInfo ReplicaTable::Info(const Record& record) const {
  ReplicaInfo info;
  info.id = record.id;
  info.artifact_id = record.artifact_id;
  info.location = record.location;
  info.state = record.state;
  info.image_bytes = record.image_bytes;
  info.chunks_total = static_cast<uint32_t>(record.chunks.size());
  info.chunks_present = record.chunks_present;
  info.leases = record.leases;
  info.pinned = record.pinned;
  info.last_used = record.last_used;
  info.ready_since = record.ready_since;
  return info;
}

void ReplicaTable::Touch(Record& record) {
  record.last_used = SteadyNow();
  record.use_order = ++uses_;
}

ReplicaTable::RecordPtr ReplicaTable::Get(std::string_view id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second;
}

ReplicaTable::RecordPtr ReplicaTable::FindReady(std::string_view artifact_id, Location location) const {
  for (const auto& [id, record] : records_) {
    if (record->state == ReplicaState::kReady && record->location == location &&
        record->artifact_id == artifact_id) {
      return record;
    }
  }
  return nullptr;
}

void ReplicaTable::Add(NewReplica replica) {
  auto record = std::make_shared<Record>();
  record->id = std::move(replica.id);
  record->artifact_id = std::move(replica.artifact_id);
  record->manifest = std::move(replica.manifest);
  record->location = replica.location;
  record->image_bytes = replica.image_bytes;
  record->chunks.assign(replica.chunks_total, false);
  record->ingest = std::move(replica.ingest);
  record->made_by = std::move(replica.made_by);
  absl::MutexLock lock(&mutex_);
  Touch(*record);
  Notify(*record);
  CHECK(records_.emplace(record->id, record).second) << "replica id " << record->id << " is taken";
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
  CHECK(record != nullptr && record->state == ReplicaState::kFilling) << "replica " << id;
  CHECK(chunk < record->chunks.size() && !record->chunks[chunk]) << "replica " << id << ", chunk " << chunk;
  record->chunks[chunk] = true;
  ++record->chunks_present;
}

void ReplicaTable::Fail(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr) << "replica " << id;
  Move(*record, ReplicaState::kFailed);
  records_.erase(record->id);
  ++space_events_;
}

std::unique_ptr<ReplicaLease> ReplicaTable::MakeReady(std::string_view id,
                                                      std::shared_ptr<const Manifest> manifest,
                                                      ReplicaStorage storage) {
  std::unique_ptr<ReplicaLease> lease;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    CHECK(record != nullptr) << "replica " << id;
    CHECK_EQ(record->chunks_present, record->chunks.size()) << "replica " << id << " is not complete";
    const RecordPtr existing = FindReady(manifest->id(), record->location);
    if (existing == nullptr) {
      record->artifact_id = manifest->id();
      record->manifest = std::move(manifest);
      record->storage = std::move(storage);
      Touch(*record);
      record->ready_since = SteadyNow();
      Move(*record, ReplicaState::kReady);
      return LeaseLocked(record);
    }
    Move(*record, ReplicaState::kFailed);
    records_.erase(record->id);
    pool = record->location;
    ++freeing_[pool];
    lease = LeaseLocked(existing);
  }
  FreeStorage(std::move(storage), pool);
  return lease;
}

void ReplicaTable::AddPackedFile(std::shared_ptr<PackedFile> file) {
  auto record = std::make_shared<Record>();
  record->id = NewUuid();
  record->manifest = file->manifest();
  record->artifact_id = record->manifest->id();
  record->location = {LocationKind::kDisk, 0};
  record->state = ReplicaState::kReady;
  record->ready_since = SteadyNow();
  record->image_bytes = record->manifest->layout().image_bytes;
  record->chunks.assign(record->manifest->layout().chunk_count(), true);
  record->chunks_present = static_cast<uint32_t>(record->chunks.size());
  record->storage.file = std::move(file);
  absl::MutexLock lock(&mutex_);
  Touch(*record);
  Notify(*record);
  records_.emplace(record->id, record);
}

absl::Status ReplicaTable::Drain(std::string_view id, const DrainOptions& options) {
  ReplicaStorage storage;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    if (record == nullptr) {
      return NoSuchReplica(id);
    }
    if (record->state == ReplicaState::kDraining && !options.only_idle) {
      return absl::OkStatus();
    }
    if (record->state != ReplicaState::kReady) {
      return absl::FailedPreconditionError(absl::StrCat(
          "replica ", id, " is ", ReplicaStateName(record->state), ": only a ready one can be evicted"));
    }
    if (record->pinned && !options.even_pinned) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " is pinned: unpin it first"));
    }
    if (record->leases > 0 && options.only_idle) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " was leased meanwhile"));
    }
    Move(*record, ReplicaState::kDraining);
    if (record->leases > 0) {
      return absl::OkStatus();
    }
    pool = record->location;
    storage = TakeGone(record);
  }
  FreeStorage(std::move(storage), pool);
  return absl::OkStatus();
}

ReplicaStorage ReplicaTable::TakeGone(const RecordPtr& record) {
  Move(*record, ReplicaState::kGone);
  records_.erase(record->id);
  ++freeing_[record->location];
  return std::move(record->storage);
}

void ReplicaTable::FreeStorage(ReplicaStorage storage, Location pool) {
  storage = ReplicaStorage();
  absl::MutexLock lock(&mutex_);
  --freeing_[pool];
  ++space_events_;
}

absl::Status ReplicaTable::SetPinned(std::string_view id, bool pinned) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr) {
    return NoSuchReplica(id);
  }
  if (record->state == ReplicaState::kDraining) {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", id, " is being evicted; materialize it again"));
  }
  if (record->pinned != pinned) {
    record->pinned = pinned;
    space_events_ += pinned ? 0 : 1;
    Notify(*record);
  }
  return absl::OkStatus();
}

std::vector<ReplicaInfo> ReplicaTable::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : records_) {
    list.push_back(Info(*record));
  }
  std::sort(list.begin(), list.end(), [](const ReplicaInfo& a, const ReplicaInfo& b) {
    return std::tie(a.artifact_id, a.location, a.id) < std::tie(b.artifact_id, b.location, b.id);
  });
  return list;
}

absl::StatusOr<ReplicaInfo> ReplicaTable::Find(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr) {
    return NoSuchReplica(id);
  }
  return Info(*record);
}

std::vector<ReplicaInfo> ReplicaTable::FindArtifact(std::string_view artifact_id) const {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : records_) {
    if (record->artifact_id == artifact_id) {
      list.push_back(Info(*record));
    }
  }
  return list;
}

absl::StatusOr<std::shared_ptr<const Manifest>> ReplicaTable::FindManifest(
    std::string_view artifact_id) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, record] : records_) {
    if (record->artifact_id == artifact_id && record->manifest != nullptr) {
      return record->manifest;
    }
  }
  return absl::NotFoundError(absl::StrCat("no replica of ", artifact_id, " on this node"));
}

}  // namespace tensorcast
