#include "core/replicas/replica_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {

namespace {

// A replica leaves the table when it is gone, so an id that was evicted and one that never was look the same.
absl::Status NoSuchReplica(std::string_view id) {
  return absl::NotFoundError(absl::StrCat("no replica ", id, " on this node: evicted, or never here"));
}

absl::Status WrongMemory(const ReplicaRecord& record) {
  return absl::DataLossError(absl::StrCat("replica ", record.info.id, " of ", record.info.artifact_id,
                                          " did not match its manifest when it was read while it filled: its "
                                          "memory was written to by another process, or is faulty"));
}

}  // namespace

ReplicaTable::~ReplicaTable() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, record] : records_) {
    CHECK_EQ(record->info.leases, 0u) << "replica " << id << " is still leased while the engine is destroyed";
  }
  CHECK(failed_.empty()) << "a replica that failed is still leased while the engine is destroyed";
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

ReplicaTable::RecordPtr ReplicaTable::FindIn(ReplicaState state, std::string_view artifact_id,
                                             Location location) const {
  for (const auto& [id, record] : records_) {
    if (record->info.state == state && record->info.location == location &&
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
  record->begun = ++begun_;
  Touch(*record);
  Notify(*record);
  CHECK(records_.emplace(record->info.id, record).second) << "replica id " << record->info.id << " is taken";
}

std::optional<std::string> ReplicaTable::TakeOver(std::string_view artifact_id, Location location,
                                                  Cancellation ingest) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = FindIn(ReplicaState::kPartial, artifact_id, location);
  if (record == nullptr) return std::nullopt;
  record->ingest = std::move(ingest);
  record->taken_over = true;
  record->begun = ++begun_;
  record->whole = false;  // until it is known what the ingest brings
  Touch(*record);
  Move(*record, ReplicaState::kFilling);
  return record->info.id;
}

ReplicaTable::Part ReplicaTable::FindPart(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr) << "replica " << id;
  if (!record->taken_over) return {};
  return {record->storage.host, record->availability};
}

void ReplicaTable::StartFilling(std::string_view id, ReplicaStorage memory, bool whole) {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  CHECK(record != nullptr) << "replica " << id;
  const bool placed = memory.host != nullptr || memory.device != nullptr;
  if (placed && record->manifest != nullptr && record->info.image_bytes > 0) {
    std::swap(record->storage, memory);  // the old one goes after the lock
    if (record->availability == nullptr) {
      record->availability =
          std::make_shared<Availability>(record->info.image_bytes, record->manifest->layout().chunk_bytes);
    }
  }
  record->whole = whole;
  if (!std::exchange(record->taken_over, false)) Move(*record, ReplicaState::kFilling);
}

void ReplicaTable::AddChunk(std::string_view id, uint32_t chunk, bool verified) {
  std::shared_ptr<Availability> availability;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    CHECK(record != nullptr && record->info.state == ReplicaState::kFilling) << "replica " << id;
    CHECK(chunk < record->chunks.size() && !record->chunks[chunk]) << "replica " << id << ", chunk " << chunk;
    record->chunks[chunk] = true;
    ++record->info.chunks_present;
    record->info.chunks_unverified += verified ? 0 : 1;
    availability = record->availability;
    if (!verified) record->availability = nullptr;
  }
  if (availability == nullptr) return;
  // Without the lock: a listener may ask for anything.
  if (verified) {
    availability->Add(chunk);
  } else {
    availability->End(absl::UnavailableError("the replica is not verified whole"));
  }
}

void ReplicaTable::Fail(std::string_view id, const absl::Status& why) {
  std::shared_ptr<Availability> ended;
  std::optional<ReplicaStorage> unneeded;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    CHECK(record != nullptr) << "replica " << id;
    pool = record->info.location;
    const bool filled = !std::exchange(record->taken_over, false);
    const bool stays = record->availability != nullptr && record->storage.host != nullptr &&
                       !record->withdrawn && (!filled || record->info.chunks_present > 0) &&
                       FindIn(ReplicaState::kReady, record->info.artifact_id, pool) == nullptr;
    if (!stays || filled) ended = record->availability;
    if (!stays) {
      record->told_to_stop = SteadyNow();
      unneeded = TakeFailed(record);
    } else {
      if (filled) {
        unneeded.emplace().host = record->CutToPresent();
        ++freeing_[pool];
      }
      Touch(*record);
      Move(*record, ReplicaState::kPartial);
      ++space_events_;  // it can be evicted
    }
  }
  if (ended != nullptr) ended->End(why);
  if (unneeded.has_value()) FreeStorage(*std::move(unneeded), pool);
}

// Like TakeGone; nullopt while it is leased: then its last lease frees the storage.
std::optional<ReplicaStorage> ReplicaTable::TakeFailed(const RecordPtr& record) {
  Move(*record, ReplicaState::kFailed);
  records_.erase(record->info.id);
  if (record->info.leases > 0) {
    failed_.insert(record);
    return std::nullopt;
  }
  ++freeing_[record->info.location];
  return std::move(record->storage);
}

// Where two ingests made the same artifact at one location (a first ingest learns its artifact id only now,
// and an ingest that is being cancelled may still end well), the first one here wins. Look-up and move are
// under one lock, so that there is never a second ready replica.
absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Complete(std::string_view id,
                                                                     std::shared_ptr<const Manifest> manifest,
                                                                     ReplicaStorage storage) {
  std::unique_ptr<ReplicaLease> lease;
  std::shared_ptr<Availability> ended;
  std::optional<ReplicaStorage> unneeded;
  Drained replaced;
  Location pool;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    CHECK(record != nullptr) << "replica " << id;
    if (record->withdrawn) return WrongMemory(*record);
    pool = record->info.location;
    const RecordPtr ready = FindIn(ReplicaState::kReady, manifest->id(), pool);
    // One that is not verified whole goes for one that is.
    const bool gives_way =
        ready != nullptr && ready->info.chunks_unverified > 0 && record->info.chunks_unverified == 0;
    const RecordPtr existing = gives_way ? nullptr : ready;
    record->storage = std::move(storage);
    if (existing != nullptr) {
      ended = record->availability;
      unneeded = TakeFailed(record);
      lease = LeaseLocked(existing);
    } else {
      const bool all = record->info.chunks_present == record->chunks.size();
      CHECK(all || record->availability != nullptr) << "replica " << id << " is not complete";
      if (record->manifest == nullptr) {
        record->info.artifact_id = manifest->id();
        record->manifest = std::move(manifest);
      }
      Touch(*record);
      if (all) {
        ended = std::exchange(record->availability, nullptr);
        const RecordPtr other =
            gives_way ? ready : FindIn(ReplicaState::kPartial, record->info.artifact_id, pool);
        if (other != nullptr) replaced = DrainLocked(other);
        record->info.ready_since = SteadyNow();
      }
      Move(*record, all ? ReplicaState::kReady : ReplicaState::kPartial);
      lease = LeaseLocked(record);
    }
  }
  if (ended != nullptr) ended->End(absl::OkStatus());
  if (unneeded.has_value()) FreeStorage(*std::move(unneeded), pool);
  Finish(std::move(replaced));
  return lease;
}

ReplicaTable::RecordPtr ReplicaTable::ReadyRecord(std::shared_ptr<const Manifest> manifest, Location location,
                                                  ReplicaStorage storage) const {
  auto record = std::make_shared<ReplicaRecord>();
  const ImageLayout& layout = manifest->layout();
  record->info = {.id = NewUuid(),
                  .artifact_id = manifest->id(),
                  .node_id = node_id_,
                  .location = location,
                  .state = ReplicaState::kReady,
                  .image_bytes = layout.image_bytes,
                  .chunks_total = layout.chunk_count(),
                  .chunks_present = layout.chunk_count(),
                  .ready_since = SteadyNow()};
  record->chunks.assign(layout.chunk_count(), true);
  record->manifest = std::move(manifest);
  record->storage = std::move(storage);
  return record;
}

void ReplicaTable::AddPackedFile(std::shared_ptr<PackedFile> file) {
  std::shared_ptr<const Manifest> manifest = file->manifest();
  const RecordPtr record = ReadyRecord(std::move(manifest), {LocationKind::kDisk, 0},
                                       {.host = nullptr, .device = nullptr, .file = std::move(file)});
  absl::MutexLock lock(&mutex_);
  Touch(*record);
  Notify(*record);
  records_.emplace(record->info.id, record);
}

std::unique_ptr<ReplicaLease> ReplicaTable::AddKept(const std::shared_ptr<const Manifest>& manifest,
                                                    HostAllocation memory) {
  const Location location{LocationKind::kCpu, 0};
  // Its memory goes after the lock where it is not taken.
  const RecordPtr record = ReadyRecord(manifest, location,
                                       {.host = std::make_shared<const HostAllocation>(std::move(memory)),
                                        .device = nullptr,
                                        .file = nullptr});
  absl::MutexLock lock(&mutex_);
  const RecordPtr other = FindIn(ReplicaState::kReady, manifest->id(), location);
  if (other != nullptr) return LeaseLocked(other);
  ++space_events_;  // it can be evicted
  Touch(*record);
  Notify(*record);
  records_.emplace(record->info.id, record);
  return LeaseLocked(record);
}

absl::Status ReplicaTable::Drain(std::string_view id, const DrainOptions& options) {
  Drained drained;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    if (record == nullptr) return NoSuchReplica(id);
    if (record->info.state == ReplicaState::kDraining && !options.only_unheld) return absl::OkStatus();
    if (record->info.state != ReplicaState::kReady && record->info.state != ReplicaState::kPartial) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " is ",
                                                        ReplicaStateName(record->info.state),
                                                        ": only a ready or partial one can be evicted"));
    }
    if (record->info.pinned && !options.even_pinned) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " is pinned: unpin it first"));
    }
    if (options.only_unheld && record->IsHeld()) {
      return absl::FailedPreconditionError(absl::StrCat("replica ", id, " was leased meanwhile"));
    }
    drained = DrainLocked(record);
  }
  Finish(std::move(drained));
  return absl::OkStatus();
}

absl::Status ReplicaTable::Withdraw(std::string_view id) {
  Drained drained;
  {
    absl::MutexLock lock(&mutex_);
    const RecordPtr record = Get(id);
    if (record == nullptr) return NoSuchReplica(id);
    if (record->info.state == ReplicaState::kReady || record->info.state == ReplicaState::kPartial) {
      drained = DrainLocked(record);
    } else if (record->info.state == ReplicaState::kFilling) {
      record->withdrawn = true;
      drained.availability = record->availability;
    }
  }
  Finish(std::move(drained));
  return absl::OkStatus();
}

// A reader of a partial replica on behalf of others has to look elsewhere.
ReplicaTable::Drained ReplicaTable::DrainLocked(const RecordPtr& record) {
  Drained drained{.availability = std::exchange(record->availability, nullptr),
                  .storage = std::nullopt,
                  .pool = record->info.location};
  if (drained.availability != nullptr) record->told_to_stop = SteadyNow();
  Move(*record, ReplicaState::kDraining);
  if (record->info.leases == 0) drained.storage = TakeGone(record);
  return drained;
}

void ReplicaTable::Finish(Drained drained) {
  if (drained.availability != nullptr) {
    drained.availability->End(absl::UnavailableError("the replica is being removed"));
  }
  if (drained.storage.has_value()) FreeStorage(*std::move(drained.storage), drained.pool);
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
  // First the memory, then the event: a thread that is woken must find the space.
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
    // Unpinned, it may be evicted: a chance for a request that waits for space.
    space_events_ += pinned ? 0 : 1;
    Notify(*record);
  }
  return absl::OkStatus();
}

ReplicaLease::ReplicaLease(ReplicaTable* table, std::shared_ptr<ReplicaRecord> record, bool to_serve)
    : table_(table),
      record_(std::move(record)),
      to_serve_(to_serve),
      host_(record_->storage.host),
      memory_(record_->Memory()),
      availability_(record_->availability),
      partial_(availability_ != nullptr &&
               !(record_->info.state == ReplicaState::kFilling && record_->whole)) {}

ReplicaLease::~ReplicaLease() {
  host_.reset();  // before the end is told, which says that there is room
  table_->EndLease(record_, to_serve_);
}

std::vector<ConstHostSpan> ReplicaLease::HostSpans(uint64_t offset, uint64_t bytes) const {
  const std::vector<HostSpan> spans = host_->Covers(offset, bytes)
                                          ? host_->Spans(offset, bytes)
                                          : table_->HostOf(*record_)->Spans(offset, bytes);
  return {spans.begin(), spans.end()};
}

std::shared_ptr<const HostAllocation> ReplicaTable::HostOf(const ReplicaRecord& record) const {
  absl::MutexLock lock(&mutex_);
  return record.storage.host;
}

const std::string& ReplicaLease::replica_id() const { return record_->info.id; }
const Location& ReplicaLease::location() const { return record_->info.location; }
const std::shared_ptr<const Manifest>& ReplicaLease::manifest() const { return record_->manifest; }
const TraceContext& ReplicaLease::made_by() const { return record_->made_by; }

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseLocked(const RecordPtr& record, bool to_serve) {
  ++record->info.leases;
  record->servings += to_serve ? 1 : 0;
  Touch(*record);
  return std::unique_ptr<ReplicaLease>(new ReplicaLease(this, record, to_serve));
}

// Each lease that ends is an event: whether the replica drains or is now idle, there may be room to be had.
void ReplicaTable::EndLease(const RecordPtr& record, bool to_serve) {
  ReplicaStorage storage;
  {
    absl::MutexLock lock(&mutex_);
    --record->info.leases;
    record->servings -= to_serve ? 1 : 0;
    Touch(*record);
    ++space_events_;
    if (record->info.leases > 0) return;
    if (record->info.state == ReplicaState::kDraining) {
      storage = TakeGone(record);
    } else if (failed_.erase(record) > 0) {
      ++freeing_[record->info.location];
      storage = std::move(record->storage);
    } else {
      return;
    }
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
  const RecordPtr record = FindIn(ReplicaState::kReady, artifact_id, location);
  if (record == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no ready replica of ", artifact_id, " at ", location.ToString(), " on this node"));
  }
  return LeaseLocked(record);
}

bool ReplicaTable::HasChunks(std::string_view id, std::span<const uint32_t> chunks) const {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  return record != nullptr && record->Has(chunks);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::LeaseChunks(std::string_view artifact_id,
                                                                        Location location,
                                                                        std::span<const uint32_t> chunks) {
  absl::MutexLock lock(&mutex_);
  RecordPtr record = FindIn(ReplicaState::kReady, artifact_id, location);
  for (auto it = records_.begin(); record == nullptr && it != records_.end(); ++it) {
    const RecordPtr& other = it->second;
    if (other->info.location == location && other->info.artifact_id == artifact_id && other->Has(chunks)) {
      record = other;
    }
  }
  if (record == nullptr) {
    return absl::NotFoundError(absl::StrCat("no replica of ", artifact_id, " at ", location.ToString(),
                                            " on this node has these ", chunks.size(), " chunks"));
  }
  return LeaseLocked(record);
}

absl::StatusOr<ReplicaTable::RecordPtr> ReplicaTable::FindFilling(std::string_view id) const {
  RecordPtr record = Get(id);
  if (record == nullptr) return NoSuchReplica(id);
  if (record->info.state != ReplicaState::kReady && !record->CanLeaseFilling()) {
    return absl::NotFoundError(absl::StrCat("replica ", id, " is ", ReplicaStateName(record->info.state),
                                            ", and nothing of it can be read yet"));
  }
  return record;
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::LeaseFilling(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  TC_ASSIGN_OR_RETURN(const RecordPtr record, FindFilling(id));
  return LeaseLocked(record);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::LeaseToServe(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  TC_ASSIGN_OR_RETURN(const RecordPtr record, FindFilling(id));
  if (record->info.chunks_unverified > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", id, " serves no other node: of its chunks ", record->info.chunks_unverified,
                     " of ", record->info.chunks_total, " were not verified (daemon.device_verification)"));
  }
  return LeaseLocked(record, /*to_serve=*/true);
}

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseAnywhere(std::string_view artifact_id,
                                                          const std::set<Location>& except,
                                                          std::string_view receiver) {
  auto rank = [](const ReplicaRecord& record) {
    if (record.info.state == ReplicaState::kPartial) return 4;
    if (record.info.state != ReplicaState::kReady) return 3;
    const LocationKind kind = record.info.location.kind;
    return kind == LocationKind::kCpu ? 0 : kind == LocationKind::kGpu ? 1 : 2;
  };
  absl::MutexLock lock(&mutex_);
  const RecordPtr own = Get(receiver);
  RecordPtr best;
  for (const auto& [id, record] : records_) {
    const bool later =
        record->info.state == ReplicaState::kFilling && (own == nullptr || record->begun > own->begun);
    if ((record->info.state == ReplicaState::kReady || (record->CanCopyFilling() && !later)) &&
        record->info.artifact_id == artifact_id && record->info.chunks_unverified == 0 &&
        !except.contains(record->info.location) &&
        (best == nullptr || std::pair(rank(*record), record->begun) < std::pair(rank(*best), best->begun))) {
      best = record;
    }
  }
  return best == nullptr ? nullptr : LeaseLocked(best, /*to_serve=*/true);
}

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseEarliest(std::span<const std::string> ids) {
  absl::MutexLock lock(&mutex_);
  RecordPtr earliest;
  for (const std::string& id : ids) {
    RecordPtr record = Get(id);
    if (record == nullptr || (record->info.state != ReplicaState::kReady && !record->CanCopyFilling())) {
      continue;
    }
    if (earliest == nullptr || record->begun < earliest->begun) earliest = std::move(record);
  }
  return earliest == nullptr ? nullptr : LeaseLocked(earliest, /*to_serve=*/true);
}

void ReplicaTable::AwaitMemoryOfEarlier(std::string_view artifact_id, const std::set<Location>& except,
                                        std::string_view receiver, const RequestContext& context) const {
  const auto none_allocates = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const RecordPtr own = Get(receiver);
    return std::ranges::none_of(records_, [&](const auto& entry) {
      const ReplicaRecord& other = *entry.second;
      return other.info.state == ReplicaState::kAllocating && other.info.artifact_id == artifact_id &&
             other.info.location.kind != LocationKind::kDisk && !except.contains(other.info.location) &&
             own != nullptr && other.begun < own->begun;
    });
  };
  AwaitUnlessCancelled(context, none_allocates);
}

size_t ReplicaTable::AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const {
  size_t count = 0;
  AwaitUnlessCancelled(context, [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const RecordPtr given = Get(id);
    count = given == nullptr ? 0 : std::ranges::count_if(records_, [&](const auto& entry) {
      const ReplicaRecord& other = *entry.second;
      return (other.info.state == ReplicaState::kAllocating || other.info.state == ReplicaState::kFilling) &&
             other.info.location.kind == LocationKind::kGpu && other.begun > given->begun &&
             other.info.artifact_id == given->info.artifact_id;
    });
    return given == nullptr || count >= min;
  });
  return count;
}

std::optional<ReplicaInfo> ReplicaTable::ReserveVictim(Location pool, const std::set<std::string>& refused) {
  // One that is being read is in use at this moment, and its readers lose their source.
  const auto order = [](const ReplicaRecord& record) {
    return std::tuple(record.info.leases > 0, record.info.state != ReplicaState::kPartial, record.use_order);
  };
  absl::MutexLock lock(&mutex_);
  RecordPtr victim;
  for (const auto& [id, record] : records_) {
    if (record->info.location == pool && record->IsEvictable() && !refused.contains(id) &&
        (victim == nullptr || order(*record) < order(*victim))) {
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

void ReplicaTable::CountEviction(Location pool, std::string_view reason) {
  otel::metrics::kPoolEvictions.Add(1, {LocationKindName(pool.kind), reason});
  absl::MutexLock lock(&mutex_);
  ++evictions_[pool];
}

uint64_t ReplicaTable::evictions(Location pool) const {
  absl::MutexLock lock(&mutex_);
  const auto found = evictions_.find(pool);
  return found == evictions_.end() ? 0 : found->second;
}

PoolHolders ReplicaTable::Holders(Location pool) const {
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  PoolHolders holders;
  const auto freeing = freeing_.find(pool);
  holders.freeing = holders.in_flux = freeing != freeing_.end() && freeing->second > 0;
  for (const auto& [id, record] : records_) {
    if (record->info.location == pool) holders.Add(*record, now);
  }
  for (const RecordPtr& record : failed_) {
    if (record->info.location == pool) holders.AddFailed(*record, now);
  }
  return holders;
}

uint64_t ReplicaTable::space_events() const {
  absl::MutexLock lock(&mutex_);
  return space_events_;
}

void ReplicaTable::WaitForSpace(uint64_t seen, const RequestContext& context) {
  AwaitUnlessCancelled(context,
                       [this, seen]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return space_events_ != seen; });
}

// The condition reads the cancellation, which this mutex does not guard. Taking the mutex in the callback,
// and giving it back, is what makes absl look at the condition again.
void ReplicaTable::AwaitUnlessCancelled(const RequestContext& context,
                                        absl::FunctionRef<bool()> condition) const {
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return condition() || context.cancellation.IsCancelled();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&over), TimeLeft(context.deadline));
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

absl::StatusOr<std::vector<bool>> ReplicaTable::PresentChunks(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const RecordPtr record = Get(id);
  if (record == nullptr) return NoSuchReplica(id);
  return record->chunks;
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
