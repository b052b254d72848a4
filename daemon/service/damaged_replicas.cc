#include "daemon/service/damaged_replicas.h"

#include <algorithm>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "daemon/node/node_messages.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr size_t kMaxRemembered = 64;
constexpr absl::Duration kMaxTry = absl::Minutes(10);

}  // namespace

DamagedReplicas::~DamagedReplicas() { cancellation_.Cancel(); }

std::string DamagedReplicas::DescribeMemory(const Possession::Damage& damage) const {
  if (damage.pool_offset.has_value()) {
    const std::vector<PoolSegment>& segments = options_.pool->segments();
    const auto behind = std::ranges::upper_bound(segments, *damage.pool_offset, {}, &PoolSegment::offset);
    const auto segment = std::prev(behind);
    return absl::StrCat("host pool, segment ", segment - segments.begin(), ", ", damage.chunk.bytes,
                        " bytes from ", *damage.pool_offset - segment->offset);
  }
  if (damage.location.kind == LocationKind::kDisk) return "packed file";
  for (const DeviceInfo& device : options_.devices->devices()) {
    if (device.ordinal != damage.location.device) continue;
    return absl::StrCat(damage.location.ToString(), " (", device.uuid, "), ", damage.chunk.bytes,
                        " bytes from ", damage.chunk.offset, " of the replica's memory");
  }
  return damage.location.ToString();
}

void DamagedReplicas::Note(const Possession::Damage& damage) {
  const std::string memory = DescribeMemory(damage);
  // In this order, so that each process that leases it is told.
  options_.engine->SetPinned(damage.replica_id, false).IgnoreError();
  const absl::Status dropped = options_.engine->Evict(damage.replica_id, /*force=*/true);
  LOG_IF(ERROR, !dropped.ok()) << "Corrupt replica " << damage.replica_id << " was not dropped: " << dropped;
  const absl::Status why = absl::DataLossError(
      absl::StrCat("replica ", damage.replica_id, " of ", damage.artifact_id,
                   " does not match its digests any more, in the chunk at ", damage.chunk.offset,
                   "; what was read of it may be wrong: get it again"));
  const int told = options_.handles->Fence(damage.replica_id, why);
  otel::metrics::kDamagedReplicas.Add(1, {LocationKindName(damage.location.kind)});
  LOG(ERROR) << "Replica " << damage.replica_id << " of " << damage.artifact_id
             << " does not match its digests any more, in the chunk at " << damage.chunk.offset << " ("
             << memory << "), and is dropped; " << told
             << " leases on it were told: check the memory of this node";
  {
    absl::MutexLock lock(&mutex_);
    v1::DamagedReplica& found = found_.emplace_front();
    found.set_replica_id(damage.replica_id);
    found.set_artifact_id(damage.artifact_id);
    *found.mutable_location() = ToProto(damage.location, options_.devices);
    found.set_offset(damage.chunk.offset);
    found.set_bytes(damage.chunk.bytes);
    found.set_memory(memory);
    *found.mutable_found() = rpc::ToProto(ToWallTime(SteadyNow()));
    found.set_ended_leases(static_cast<uint32_t>(told));
    if (found_.size() > kMaxRemembered) found_.pop_back();
  }
  replacing_.Post([this, damage] { Replace(damage); });
}

void DamagedReplicas::Replace(const Possession::Damage& damage) {
  RequestContext waits = RequestContext::Background();
  waits.cancellation = cancellation_;
  absl::StatusOr<std::string> made = absl::UnknownError("not tried");
  absl::Duration pause = options_.retry_interval;
  for (int tries = 0; tries < options_.tries && !made.ok(); ++tries, pause *= 2) {
    if (tries > 0 && !rpc::SleepFor(waits, pause, "replacing a damaged replica").ok()) return;
    if (cancellation_.IsCancelled()) return;
    RequestContext context = RequestContext::Background(kMaxTry);
    context.cancellation = cancellation_;
    made = options_.replace(context, damage.artifact_id, damage.location);
    LOG_IF(WARNING, !made.ok()) << "Damaged replica " << damage.replica_id << " of " << damage.artifact_id
                                << " is not replaced yet: " << made.status();
  }
  if (!made.ok()) {
    LOG(ERROR) << "Damaged replica " << damage.replica_id << " of " << damage.artifact_id
               << " was not replaced: " << made.status();
    return;
  }
  LOG(INFO) << "Damaged replica " << damage.replica_id << " of " << damage.artifact_id << " is replaced by "
            << *made;
  absl::MutexLock lock(&mutex_);
  const auto found = std::ranges::find(found_, damage.replica_id, &v1::DamagedReplica::replica_id);
  if (found != found_.end()) found->set_replaced_by(*made);
}

void DamagedReplicas::Fill(google::protobuf::RepeatedPtrField<v1::DamagedReplica>* out) const {
  absl::MutexLock lock(&mutex_);
  for (const v1::DamagedReplica& found : found_) *out->Add() = found;
}

}  // namespace tensorcast::daemon
