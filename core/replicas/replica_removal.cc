#include "core/replicas/replica_removal.h"

#include <algorithm>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

constexpr Location kDisk{LocationKind::kDisk, 0};

}  // namespace

absl::Status ReplicaRemoval::Evict(std::string_view replica_id, bool force) {
  TC_ASSIGN_OR_RETURN(const ReplicaInfo replica, table_->Find(replica_id));
  // The guard costs a call of the global store. A pinned one is refused below, by Drain, whatever the guard
  // would say.
  const bool guarded = !force && !replica.pinned && replica.state == ReplicaState::kReady;
  if (guarded && guard_ != nullptr) {
    if (absl::Status allowed = guard_->MayEvict(replica); !allowed.ok()) {
      // The guard could not decide: the same request may succeed later, so the code stays.
      if (absl::IsUnavailable(allowed)) {
        return Annotate(allowed, absl::StrCat("evict replica ", replica_id, " without --force"));
      }
      return absl::FailedPreconditionError(
          absl::StrCat("evict replica ", replica_id, ": the replica must stay",
                       absl::IsAborted(allowed) ? " for now because of " : ": ", allowed.message(),
                       absl::IsAborted(allowed) ? "; evict the replica later, or now with --force"
                                                : "; --force evicts the replica anyway"));
    }
  }
  TC_RETURN_IF_ERROR(table_->Drain(replica_id, {.reason = "request"}));
  // Readers with a lease go on by their descriptor; the name goes now.
  return replica.location == kDisk ? RemovePackedFile(replica.artifact_id) : absl::OkStatus();
}

absl::Status ReplicaRemoval::RemoveArtifact(std::string_view artifact_id, SteadyTime as_of) {
  for (const ReplicaInfo& replica : table_->FindArtifact(artifact_id)) {
    // One that became ready after the delete was made by a later put of the artifact. A partial one
    // is not a loss in any case.
    if (replica.ready_since <= as_of || replica.state == ReplicaState::kPartial) DrainDeleted(replica);
  }
  return RemovePackedFile(std::string(artifact_id));
}

absl::Status ReplicaRemoval::RemoveMade(std::string_view replica_id, std::string_view artifact_id) {
  if (const absl::StatusOr<ReplicaInfo> made = table_->Find(replica_id); made.ok()) DrainDeleted(*made);
  return RemovePackedFile(std::string(artifact_id));
}

void ReplicaRemoval::DrainDeleted(const ReplicaInfo& replica) {
  // An error: it went by itself meanwhile, or is being made.
  (void)table_->Drain(replica.id, {.even_pinned = true, .reason = "deleted"});
}

// The replica was drained before, so a ready replica that is found here belongs to a newer file under the
// same name.
absl::Status ReplicaRemoval::RemovePackedFile(const std::string& artifact_id) {
  if (store_ == nullptr) return absl::OkStatus();
  const NameLocks::Held held = disk_names_->Acquire(artifact_id);
  if (table_->LeaseAt(artifact_id, kDisk).ok()) return absl::OkStatus();  // written anew meanwhile
  const absl::Status removed = store_->Remove(artifact_id);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

void ReplicaRemoval::DropAllLost() {
  if (store_ == nullptr) return;
  store_->ForgetRemovedDamage();
  for (const ReplicaInfo& replica : table_->List()) {
    if (replica.location == kDisk && replica.state == ReplicaState::kReady) DropIfLost(replica.artifact_id);
  }
}

// Called at the end of each ingest, so it reads the table only where a device is unhealthy.
void ReplicaRemoval::WithdrawUnhealthy() {
  if (devices_ == nullptr) return;
  const auto unhealthy = [this](const DeviceInfo& device) {
    return !devices_->CheckHealth(device.ordinal).ok();
  };
  if (std::ranges::none_of(devices_->devices(), unhealthy)) return;
  for (const ReplicaInfo& replica : table_->List()) {
    const Location location = replica.location;
    if (location.kind != LocationKind::kGpu || replica.state != ReplicaState::kReady) continue;
    const absl::Status health = devices_->CheckHealth(location.device);
    if (health.ok() || !table_->Drain(replica.id, {.even_pinned = true, .reason = "unhealthy"}).ok()) {
      continue;
    }
    LOG(ERROR) << "withdraw replica " << replica.id << " of " << replica.artifact_id << ": "
               << location.ToString() << " is unhealthy: " << health.message();
  }
}

void ReplicaRemoval::DropIfLost(const std::string& artifact_id) {
  const auto is_lost = [&] { return absl::IsFailedPrecondition(store_->Find(artifact_id).status()); };
  // Once without the lock, which an ingest to disk holds for long; what is found is looked at again under it.
  if (!table_->LeaseAt(artifact_id, kDisk).ok() || !is_lost()) return;
  // Under this lock a file is there before its replica is ready, and longer than that.
  const NameLocks::Held held = disk_names_->Acquire(artifact_id);
  if (!is_lost()) return;
  for (const ReplicaInfo& replica : table_->FindArtifact(artifact_id)) {
    if (replica.location == kDisk && replica.state == ReplicaState::kReady &&
        table_->Drain(replica.id, {.even_pinned = true}).ok()) {
      LOG(ERROR)
          << "serve the packed file of " << artifact_id
          << ": another process removed or replaced the file, so this node no longer reads it; put the "
             "artifact again";
    }
  }
  store_->CloseLost(artifact_id);
}

}  // namespace tensorcast
