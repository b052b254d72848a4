#include "daemon/service/damaged_replicas.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

// The status shows the last ones. The log has all of them.
constexpr size_t kMaxRemembered = 64;
constexpr absl::Duration kMaxTry = absl::Minutes(10);

}  // namespace

DamagedReplicas::~DamagedReplicas() { cancellation_.Cancel(); }

void DamagedReplicas::Note(v1::DamagedReplica damaged) {
  const std::string& replica_id = damaged.replica_id();
  // The eviction comes first: from then on no process gets a lease, so that Fence reaches all that have one.
  // A pin would keep the replica.
  options_.engine->SetPinned(replica_id, false).IgnoreError();
  const absl::Status dropped = options_.engine->Evict(replica_id, /*force=*/true);
  LOG_IF(ERROR, !dropped.ok()) << "drop corrupt replica " << replica_id << ": " << dropped
                               << "; run `tensorcast replica rm --force " << replica_id << "`";
  const absl::Status why = absl::DataLossError(absl::StrCat(
      "read replica ", replica_id, " of ", damaged.artifact_id(), ": the chunk at offset ", damaged.offset(),
      " no longer matches its digest, so the program may have read wrong bytes; get the artifact again"));
  const int told = options_.handles->Fence(replica_id, why);
  const absl::StatusOr<Location> location = rpc::FromProto(damaged.location());
  if (location.ok()) otel::metrics::kDamagedReplicas.Add(1, {LocationKindName(location->kind)});
  LOG(ERROR) << "Replica " << replica_id << " of " << damaged.artifact_id()
             << " no longer matches its digests, in the chunk at offset " << damaged.offset() << " ("
             << damaged.memory() << "), and is dropped; this daemon told the holders of " << told
             << " leases; check the memory of this node";
  damaged.set_ended_leases(static_cast<uint32_t>(told));
  {
    absl::MutexLock lock(&mutex_);
    found_.push_front(damaged);
    if (found_.size() > kMaxRemembered) found_.pop_back();
  }
  // The repair has a thread of its own, since a transfer takes its time. The damaged replica is gone already.
  replacing_.Post([this, damaged = std::move(damaged)] { Replace(damaged); });
}

void DamagedReplicas::Replace(const v1::DamagedReplica& damaged) {
  RequestContext waits = RequestContext::Background();
  // Tries again with pauses that grow, since the other sources may be away or busy for a moment.
  waits.cancellation = cancellation_;
  absl::StatusOr<std::string> made = absl::UnknownError("not tried");
  absl::Duration pause = options_.retry_interval;
  for (int tries = 0; tries < options_.tries && !made.ok(); ++tries, pause *= 2) {
    if (tries > 0 && !rpc::SleepFor(waits, pause, "replace a damaged replica").ok()) return;
    if (cancellation_.IsCancelled()) return;
    RequestContext context = RequestContext::Background(kMaxTry);
    context.cancellation = cancellation_;
    made = options_.replace(context, damaged);
    LOG_IF(WARNING, !made.ok()) << "Damaged replica " << damaged.replica_id() << " of "
                                << damaged.artifact_id() << " is not replaced yet: " << made.status();
  }
  if (!made.ok()) {
    LOG(ERROR) << "Damaged replica " << damaged.replica_id() << " of " << damaged.artifact_id()
               << " was not replaced: " << made.status() << "; get the artifact again on this node";
    return;
  }
  LOG(INFO) << "Damaged replica " << damaged.replica_id() << " of " << damaged.artifact_id()
            << " is replaced by " << *made;
  absl::MutexLock lock(&mutex_);
  const auto found = std::ranges::find(found_, damaged.replica_id(), &v1::DamagedReplica::replica_id);
  if (found != found_.end()) found->set_replaced_by(*made);
}

void DamagedReplicas::Fill(google::protobuf::RepeatedPtrField<v1::DamagedReplica>* out) const {
  absl::MutexLock lock(&mutex_);
  for (const v1::DamagedReplica& found : found_) *out->Add() = found;
}

}  // namespace tensorcast::daemon
