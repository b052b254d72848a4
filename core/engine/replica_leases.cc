// The table's second half: leases, and what keeps a pool full.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/engine/replica_record.h"
#include "core/engine/replica_table.h"

namespace tensorcast {

class LeaseImpl final : public ReplicaLease {
 public:
  LeaseImpl(ReplicaTable* table, std::shared_ptr<ReplicaTable::Record> record)
      : table_(table), record_(std::move(record)), memory_(MemoryOf(record_->storage)) {}
  ~LeaseImpl() override { table_->EndLease(record_); }

  const std::string& replica_id() const override { return record_->id; }
  const Location& location() const override { return record_->location; }
  const std::shared_ptr<const Manifest>& manifest() const override { return record_->manifest; }
  const ReplicaMemory& memory() const override { return memory_; }
  const TraceContext& made_by() const override { return record_->made_by; }

 private:
  static ReplicaMemory MemoryOf(const ReplicaStorage& storage) {
    ReplicaMemory memory;
    memory.host = storage.host.get();
    memory.device = storage.device.pointer();
    if (storage.file != nullptr) {
      memory.file = storage.file->fd();
      memory.file_image_offset = storage.file->image_offset();
    }
    return memory;
  }

  ReplicaTable* const table_;
  const std::shared_ptr<ReplicaTable::Record> record_;
  const ReplicaMemory memory_;
};

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseLocked(const RecordPtr& record) {
  ++record->leases;
  Touch(*record);
  return std::make_unique<LeaseImpl>(this, record);
}

void ReplicaTable::EndLease(const RecordPtr& record) {
  ReplicaStorage storage;
  {
    absl::MutexLock lock(&mutex_);
    --record->leases;
    Touch(*record);
    ++space_events_;
    if (record->state != ReplicaState::kDraining || record->leases > 0) {
      return;
    }
    storage = TakeGone(record);
  }
  FreeStorage(std::move(storage), record->location);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Lease(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr || record->state != ReplicaState::kReady) {
    return absl::NotFoundError(absl::StrCat("no ready replica ", id, " on this node",
                                            record == nullptr ? "" : ": it is ",
                                            record == nullptr ? "" : ReplicaStateName(record->state)));
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
    if (record->state == ReplicaState::kReady && record->artifact_id == artifact_id &&
        !except.contains(record->location) &&
        (best == nullptr || rank(record->location.kind) < rank(best->location.kind))) {
      best = record;
    }
  }
  return best == nullptr ? nullptr : LeaseLocked(best);
}

bool ReplicaTable::Evictable(const Record& record) const {
  return record.state == ReplicaState::kReady && record.leases == 0 && !record.pinned && !record.reserved;
}

std::optional<ReplicaInfo> ReplicaTable::ReserveVictim(Location pool, const std::set<std::string>& refused) {
  absl::MutexLock lock(&mutex_);
  RecordPtr victim;
  for (const auto& [id, record] : records_) {
    if (record->location == pool && Evictable(*record) && !refused.contains(id) &&
        (victim == nullptr || record->use_order < victim->use_order)) {
      victim = record;
    }
  }
  if (victim == nullptr) {
    return std::nullopt;
  }
  victim->reserved = true;
  return Info(*victim);
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
  auto add = [](PoolHolders::Share& share, const Record& record) {
    ++share.replicas;
    share.bytes += (record.image_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  };
  for (const auto& [id, record] : records_) {
    if (record->location != pool) {
      continue;
    }
    if (record->state == ReplicaState::kAllocating || record->state == ReplicaState::kFilling) {
      holders.in_flux |= record->ingest.IsCancelled();
      if (record->state == ReplicaState::kFilling) {
        add(holders.filling, *record);
      }
    } else if (record->leases > 0) {
      add(holders.leased, *record);
    } else if (record->pinned) {
      add(holders.pinned, *record);
    } else {
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

void ReplicaTable::WaitForSpace(uint64_t seen, const RequestContext& context) {
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto changed = [this, seen, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return space_events_ != seen || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(context.deadline));
}

}  // namespace tensorcast
