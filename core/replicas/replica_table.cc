#include "core/replicas/replica_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {

namespace {

absl::Status WrongMemory(const ReplicaRecord& record) {
  return absl::DataLossError(
      absl::StrCat("verify replica ", record.info.id, " of ", record.info.artifact_id,
                   ": the bytes do not match the manifest, since another process wrote to the memory or the "
                   "memory is faulty; check the memory of ",
                   record.info.location.kind == LocationKind::kGpu ? record.info.location.ToString()
                                                                   : std::string("this host")));
}

}  // namespace

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
  absl::MutexLock lock(&states_.mutex);
  // The order of ingests decides which one may read from which.
  record->begun = ++begun_;
  states_.Insert(record);
}

// The record keeps its memory, chunks, availability and leases. `taken_over` tells until StartFilling that
// nothing was changed yet: Fail then leaves it as it was.
std::optional<std::string> ReplicaTable::TakeOver(std::string_view artifact_id, Location location,
                                                  Cancellation ingest) {
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr record = states_.records.FindIn(ReplicaState::kPartial, artifact_id, location);
  if (record == nullptr) return std::nullopt;
  record->ingest = std::move(ingest);
  record->taken_over = true;
  // As if it had begun now: it may read from those that are ahead of it.
  record->begun = ++begun_;
  record->whole = false;  // until it is known what the ingest brings
  states_.Touch(*record);
  states_.Move(*record, ReplicaState::kFilling);
  return record->info.id;
}

ReplicaTable::Part ReplicaTable::FindPart(std::string_view id) const {
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr record = states_.records.Get(id);
  if (!record->taken_over) return {};
  return {record->storage.host, record->availability};
}

// Without memory (a first ingest has no manifest, a packed file no memory) there is no availability, so
// nothing reads the replica before it is ready.
void ReplicaTable::StartFilling(std::string_view id, ReplicaStorage memory, bool whole) {
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr record = states_.records.Get(id);
  const bool placed = memory.host != nullptr || memory.device != nullptr;
  if (placed && record->manifest != nullptr && record->info.image_bytes > 0) {
    std::swap(record->storage, memory);  // the old one goes after the lock
    if (record->availability == nullptr) {
      record->availability =
          std::make_shared<Availability>(record->info.image_bytes, record->manifest->layout().chunk_bytes);
    }
  }
  record->whole = whole;
  if (!std::exchange(record->taken_over, false)) states_.Move(*record, ReplicaState::kFilling);
}

// The record first, then the availability: a reader that sees the chunk finds it counted. Several slots of
// one ingest call this at once, each for its own chunks.
void ReplicaTable::AddChunk(std::string_view id, uint32_t chunk, bool verified) {
  std::shared_ptr<Availability> availability;
  {
    absl::MutexLock lock(&states_.mutex);
    const ReplicaRecordPtr record = states_.records.Get(id);
    CHECK(record->info.state == ReplicaState::kFilling) << "replica " << id;
    CHECK(chunk < record->chunks.size() && !record->chunks[chunk]) << "replica " << id << ", chunk " << chunk;
    record->chunks[chunk] = true;
    ++record->info.chunks_present;
    record->info.chunks_unverified += verified ? 0 : 1;
    availability = record->availability;
    // From now on the replica serves only its node's clients, once it is ready.
    if (!verified) record->availability = nullptr;
  }
  if (availability == nullptr) return;
  // Without the lock: a listener may ask for anything.
  if (verified) {
    availability->Add(chunk);
  } else {
    availability->End(
        absl::UnavailableError("serve the replica: not all chunks are verified; use another source"));
  }
}

void ReplicaTable::Fail(std::string_view id, const absl::Status& why) {
  ReplicaStates::Rest rest;
  {
    absl::MutexLock lock(&states_.mutex);
    const ReplicaRecordPtr record = states_.records.Get(id);
    const Location pool = record->info.location;
    const bool filled = !std::exchange(record->taken_over, false);
    // What can be read stays as a partial replica, unless it was found wrong or a ready one is in its place.
    // One that was taken over and not filled is as it was.
    const bool stays =
        record->availability != nullptr && record->storage.host != nullptr && !record->withdrawn &&
        (!filled || record->info.chunks_present > 0) &&
        states_.records.FindIn(ReplicaState::kReady, record->info.artifact_id, pool) == nullptr;
    if (!stays) {
      record->told_to_stop = SteadyNow();
      rest = states_.Fail(record, why);
    } else {
      if (filled) {
        // The memory of the missing chunks is freed without the lock, in Finish.
        states_.space.BeginFreeing(pool);
        rest = {.availability = record->availability, .end = why, .pool = pool};
        rest.storage.emplace().host = record->CutToPresent();
      }
      states_.Touch(*record);
      states_.Move(*record, ReplicaState::kPartial);
      states_.space.NoteChance();  // it can be evicted
    }
  }
  states_.Finish(std::move(rest));
}

// Where two ingests made the same artifact at one location (a first ingest learns its artifact id only now,
// and an ingest that is being cancelled may still end well), the first one here wins, unless processes hold
// the memory of the later one. Look-up and move are under one lock, so that there is never a second ready
// replica.
absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Complete(std::string_view id,
                                                                     std::shared_ptr<const Manifest> manifest,
                                                                     ReplicaStorage storage, bool replaces) {
  std::unique_ptr<ReplicaLease> lease;
  ReplicaStates::Rest rest;
  ReplicaStates::Rest replaced;
  {
    absl::MutexLock lock(&states_.mutex);
    const ReplicaRecordPtr record = states_.records.Get(id);
    if (record->withdrawn) return WrongMemory(*record);
    const Location pool = record->info.location;
    const ReplicaRecordPtr ready = states_.records.FindIn(ReplicaState::kReady, manifest->id(), pool);
    // One that is not verified whole goes for one that is.
    const bool gives_way =
        ready != nullptr &&
        (replaces || (ready->info.chunks_unverified > 0 && record->info.chunks_unverified == 0));
    record->storage = std::move(storage);
    if (ready != nullptr && !gives_way) {
      // OK: the chunks were right, and a reader of them finds all in the other replica.
      rest = states_.Fail(record, absl::OkStatus());
      lease = states_.Lease(ready);
    } else {
      const bool all = record->info.chunks_present == record->chunks.size();
      CHECK(all || record->availability != nullptr) << "replica " << id << " is not complete";
      if (record->manifest == nullptr) {
        record->info.artifact_id = manifest->id();
        record->manifest = std::move(manifest);
      }
      states_.Touch(*record);
      ReplicaRecordPtr other;
      if (all) {
        // It ends with OK, the default of `rest.end`: every chunk is there.
        rest.availability = std::exchange(record->availability, nullptr);
        // At one place there is one replica of an artifact: what this one replaces drains.
        other = gives_way ? ready
                          : states_.records.FindIn(ReplicaState::kPartial, record->info.artifact_id, pool);
        record->info.pinned |= replaces && other != nullptr && other->info.pinned;
        record->info.ready_since = SteadyNow();
      }
      // In this order, so that listeners see a copy at any time.
      states_.Move(*record, all ? ReplicaState::kReady : ReplicaState::kPartial);
      if (other != nullptr) replaced = states_.Drain(other);
      lease = states_.Lease(record);
    }
  }
  states_.Finish(std::move(rest));
  states_.Finish(std::move(replaced));
  return lease;
}

void ReplicaTable::AddPackedFile(std::shared_ptr<PackedFile> file) {
  const std::shared_ptr<const Manifest> manifest = file->manifest();
  const ReplicaRecordPtr record =
      MakeReadyRecord(node_id_, manifest, {LocationKind::kDisk, 0}, {.file = std::move(file)});
  absl::MutexLock lock(&states_.mutex);
  states_.Insert(record);
}

std::unique_ptr<ReplicaLease> ReplicaTable::AddKept(const std::shared_ptr<const Manifest>& manifest,
                                                    HostAllocation memory) {
  const Location location{LocationKind::kCpu, 0};
  // Its memory goes after the lock where it is not taken.
  const ReplicaRecordPtr record = MakeReadyRecord(
      node_id_, manifest, location, {.host = std::make_shared<const HostAllocation>(std::move(memory))});
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr other = states_.records.FindIn(ReplicaState::kReady, manifest->id(), location);
  if (other != nullptr) return states_.Lease(other);
  states_.space.NoteChance();  // it can be evicted
  states_.Insert(record);
  return states_.Lease(record);
}

// Begins the end of the replica; its memory is free when its last lease has ended (ReplicaStates::EndLease).
absl::Status ReplicaTable::Drain(std::string_view id, const DrainOptions& options) {
  ReplicaStates::Rest rest;
  {
    absl::MutexLock lock(&states_.mutex);
    TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
    if (record->info.state == ReplicaState::kDraining && !options.only_unheld) return absl::OkStatus();
    if (record->info.state != ReplicaState::kReady && record->info.state != ReplicaState::kPartial) {
      return absl::FailedPreconditionError(absl::StrCat(
          "evict replica ", id, ": the replica is ", ReplicaStateName(record->info.state),
          record->info.state == ReplicaState::kAllocating || record->info.state == ReplicaState::kFilling
              ? ", and only a ready or partial replica can be evicted; wait until the replica is ready"
              : "; no action is needed, the replica ends with its last lease"));
    }
    if (record->info.pinned && !options.even_pinned) {
      return absl::FailedPreconditionError(
          absl::StrCat("evict replica ", id, ": the replica is pinned; unpin the replica first"));
    }
    if (options.only_unheld && record->IsHeld()) {
      return absl::FailedPreconditionError(
          absl::StrCat("evict replica ", id, ": the replica was leased meanwhile; try again"));
    }
    rest = states_.Drain(record);
  }
  if (!options.reason.empty()) states_.space.CountEviction(rest.pool, options.reason);
  states_.Finish(std::move(rest));
  return absl::OkStatus();
}

absl::StatusOr<RetiredReplica> ReplicaTable::Retire(std::string_view id, uint32_t live_leases) {
  RetiredReplica retired;
  ReplicaStates::Rest rest;
  {
    absl::MutexLock lock(&states_.mutex);
    TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
    const ReplicaInfo& info = record->info;
    const bool in_memory = record->storage.host != nullptr || record->storage.device != nullptr;
    if (info.state != ReplicaState::kReady || !in_memory || info.pinned || info.leases > live_leases ||
        record->reserved) {
      return absl::FailedPreconditionError(absl::StrCat("retire replica ", id, ": the replica is ",
                                                        info.leases > live_leases ? "leased"
                                                        : info.pinned             ? "pinned"
                                                        : record->reserved        ? "being evicted"
                                                        : !in_memory              ? "not in memory"
                                                                                  : "not ready",
                                                        "; try again"));
    }
    // A reference of the caller's own: the draining replica lets go of its storage, and the memory stays
    // allocated.
    retired = {.replica_id = info.id,
               .manifest = record->manifest,
               .made_by = record->made_by,
               .storage = record->storage};
    rest = states_.Drain(record);
  }
  states_.space.CountEviction(rest.pool, "space");
  states_.Finish(std::move(rest));
  return retired;
}

absl::Status ReplicaTable::Withdraw(std::string_view id) {
  ReplicaStates::Rest rest;
  {
    absl::MutexLock lock(&states_.mutex);
    TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
    if (record->info.state == ReplicaState::kReady || record->info.state == ReplicaState::kPartial) {
      rest = states_.Drain(record);
    } else if (record->info.state == ReplicaState::kFilling) {
      // Its ingest goes on and fails at its end (Complete). Its readers are told now.
      record->withdrawn = true;
      rest.availability = record->availability;
      rest.end = ReplicaStates::BeingRemoved();
    } else {
      return absl::OkStatus();  // it goes already, and was counted then
    }
    states_.space.CountEviction(record->info.location, "corrupt");
  }
  states_.Finish(std::move(rest));
  return absl::OkStatus();
}

absl::Status ReplicaTable::SetPinned(std::string_view id, bool pinned) {
  absl::MutexLock lock(&states_.mutex);
  TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
  if (record->info.state == ReplicaState::kDraining) {
    return absl::FailedPreconditionError(absl::StrCat(
        pinned ? "pin" : "unpin", " replica ", id, ": the replica is being evicted; get the artifact again"));
  }
  if (record->info.pinned != pinned) {
    record->info.pinned = pinned;
    // Unpinned, it may be evicted: a chance for a request that waits for space.
    if (!pinned) states_.space.NoteChance();
    states_.Notify(*record);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::Lease(std::string_view id, LeaseOf of) {
  absl::MutexLock lock(&states_.mutex);
  TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
  const ReplicaInfo& info = record->info;
  const bool readable = of != LeaseOf::kReady && record->CanLeaseFilling();
  if (info.state != ReplicaState::kReady && !readable) {
    return absl::NotFoundError(
        absl::StrCat("lease replica ", id, ": the replica is ", ReplicaStateName(info.state),
                     of == LeaseOf::kReady ? ", not ready" : ", and no chunk of the replica can be read now",
                     "; try again later, or get the artifact"));
  }
  if (of == LeaseOf::kToServe && info.chunks_unverified > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("serve replica ", id, " to another node: ", info.chunks_unverified, " of the replica's ",
                     info.chunks_total, " chunks were not verified; set daemon.device_verification to full"));
  }
  return states_.Lease(record, of == LeaseOf::kToServe);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> ReplicaTable::LeaseAt(
    std::string_view artifact_id, Location location, const std::optional<std::vector<uint32_t>>& chunks) {
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr record = states_.records.FindWith(artifact_id, location, chunks);
  if (record != nullptr) return states_.Lease(record);
  return absl::NotFoundError(absl::StrCat(
      "find a ", chunks.has_value() ? "" : "ready ", "replica of ", artifact_id, " at ", location.ToString(),
      chunks.has_value() ? absl::StrCat(" with the ", chunks->size(), " requested chunks") : "",
      ": this node has no such replica; get the artifact"));
}

bool ReplicaTable::HasChunks(std::string_view id, std::span<const uint32_t> chunks) const {
  absl::MutexLock lock(&states_.mutex);
  const absl::StatusOr<ReplicaRecordPtr> record = states_.records.Find(id);
  return record.ok() && (*record)->Has(chunks);
}

// A lease to serve: an ingest that reads a partial replica does not keep it from eviction, but looks for
// another source. The wait and the look-up take the mutex one after the other; what changes in between is
// found by the look-up.
std::unique_ptr<ReplicaLease> ReplicaTable::LeaseSource(std::string_view artifact_id,
                                                        const std::set<Location>& except,
                                                        std::string_view receiver,
                                                        const RequestContext& context) {
  states_.AwaitUnlessCancelled(context, [&]() ABSL_SHARED_LOCKS_REQUIRED(states_.mutex) {
    return !states_.records.IsEarlierAllocating(artifact_id, except, receiver);
  });
  absl::MutexLock lock(&states_.mutex);
  return states_.Lease(states_.records.FindSource(artifact_id, except, receiver), /*to_serve=*/true);
}

std::unique_ptr<ReplicaLease> ReplicaTable::LeaseEarliest(std::span<const std::string> ids) {
  absl::MutexLock lock(&states_.mutex);
  return states_.Lease(states_.records.FindEarliest(ids), /*to_serve=*/true);
}

std::vector<ReplicaTable::ReadyReplica> ReplicaTable::FindReady(Location location,
                                                                uint64_t chunk_bytes) const {
  std::vector<std::pair<uint64_t, ReadyReplica>> found;
  {
    absl::MutexLock lock(&states_.mutex);
    for (const auto& [id, record] : states_.records.all()) {
      const ReplicaInfo& info = record->info;
      if (info.state == ReplicaState::kReady && info.location == location && info.chunks_unverified == 0 &&
          record->manifest->layout().chunk_bytes == chunk_bytes) {
        found.push_back({record->use_order, {id, record->manifest}});
      }
    }
  }
  // The one that was used last comes first.
  std::ranges::sort(found, std::ranges::greater(), [](const auto& replica) { return replica.first; });
  std::vector<ReadyReplica> replicas;
  for (auto& [use_order, replica] : found) replicas.push_back(std::move(replica));
  return replicas;
}

size_t ReplicaTable::AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const {
  std::optional<size_t> count;
  states_.AwaitUnlessCancelled(context, [&]() ABSL_SHARED_LOCKS_REQUIRED(states_.mutex) {
    count = states_.records.CountGpuReceivers(id);
    return !count.has_value() || *count >= min;
  });
  return count.value_or(0);
}

// `reserved` keeps other requests from asking the guard about the same replica. It ends with Unreserve, or
// with the replica.
std::optional<ReplicaInfo> ReplicaTable::ReserveVictim(Location pool, const std::set<std::string>& refused) {
  absl::MutexLock lock(&states_.mutex);
  const ReplicaRecordPtr victim = states_.records.FindVictim(pool, refused);
  if (victim == nullptr) return std::nullopt;
  victim->reserved = true;
  return victim->info;
}

void ReplicaTable::Unreserve(std::string_view id) {
  absl::MutexLock lock(&states_.mutex);
  if (const absl::StatusOr<ReplicaRecordPtr> record = states_.records.Find(id); record.ok()) {
    (*record)->reserved = false;
    // Another request may take it now.
    states_.space.NoteChance();
  }
}

PoolHolders ReplicaTable::Holders(Location pool) const {
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&states_.mutex);
  PoolHolders holders;
  holders.freeing = holders.in_flux = states_.space.IsFreeing(pool);
  for (const auto& [id, record] : states_.records.all()) {
    if (record->info.location == pool) holders.Add(*record, now);
  }
  for (const ReplicaRecordPtr& record : states_.failed) {
    if (record->info.location == pool) holders.AddFailed(*record, now);
  }
  return holders;
}

std::vector<ReplicaInfo> ReplicaTable::List() const {
  absl::MutexLock lock(&states_.mutex);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : states_.records.all()) list.push_back(record->info);
  std::sort(list.begin(), list.end(), [](const ReplicaInfo& a, const ReplicaInfo& b) {
    return std::tie(a.artifact_id, a.location, a.id) < std::tie(b.artifact_id, b.location, b.id);
  });
  return list;
}

absl::StatusOr<std::vector<bool>> ReplicaTable::PresentChunks(std::string_view id) const {
  absl::MutexLock lock(&states_.mutex);
  TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
  return record->chunks;
}

absl::StatusOr<ReplicaInfo> ReplicaTable::Find(std::string_view id) const {
  absl::MutexLock lock(&states_.mutex);
  TC_ASSIGN_OR_RETURN(const ReplicaRecordPtr record, states_.records.Find(id));
  return record->info;
}

std::vector<ReplicaInfo> ReplicaTable::FindArtifact(std::string_view artifact_id) const {
  absl::MutexLock lock(&states_.mutex);
  std::vector<ReplicaInfo> list;
  for (const auto& [id, record] : states_.records.all()) {
    if (record->info.artifact_id == artifact_id) list.push_back(record->info);
  }
  return list;
}

absl::StatusOr<std::shared_ptr<const Manifest>> ReplicaTable::FindManifest(
    std::string_view artifact_id) const {
  absl::MutexLock lock(&states_.mutex);
  for (const auto& [id, record] : states_.records.all()) {
    if (record->info.artifact_id == artifact_id && record->manifest != nullptr) return record->manifest;
  }
  return absl::NotFoundError(
      absl::StrCat("find a replica of ", artifact_id, ": this node has no replica; get the artifact"));
}

}  // namespace tensorcast
