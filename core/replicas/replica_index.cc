#include "core/replicas/replica_index.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

// The one of these that `fits` with the lowest `order`.
template <typename Fits, typename Order>
ReplicaRecordPtr FindFirst(const absl::flat_hash_map<std::string, ReplicaRecordPtr>& records, Fits fits,
                           Order order) {
  ReplicaRecordPtr first;
  for (const auto& [id, record] : records) {
    if (fits(*record) && (first == nullptr || order(*record) < order(*first))) first = record;
  }
  return first;
}

uint64_t BeginOf(const ReplicaRecord& record) { return record.begun; }

bool IsReady(const ReplicaRecord& record) { return record.info.state == ReplicaState::kReady; }

}  // namespace

void ReplicaIndex::Insert(ReplicaRecordPtr record) {
  const std::string& id = record->info.id;
  CHECK(records_.emplace(id, record).second) << "replica id " << id << " is taken";
}

absl::StatusOr<ReplicaRecordPtr> ReplicaIndex::Find(std::string_view id) const {
  const auto found = records_.find(id);
  if (found != records_.end()) return found->second;
  // A replica leaves the table when it is gone, so an id that was evicted and one that never was look alike.
  return absl::NotFoundError(absl::StrCat(
      "find replica ", id, ": the replica was evicted, or was never on this node; get the artifact again"));
}

ReplicaRecordPtr ReplicaIndex::Get(std::string_view id) const {
  const auto found = records_.find(id);
  CHECK(found != records_.end()) << "replica " << id;
  return found->second;
}

ReplicaRecordPtr ReplicaIndex::FindIn(ReplicaState state, std::string_view artifact_id,
                                      Location location) const {
  const auto fits = [&](const ReplicaRecord& record) {
    return record.info.state == state && record.info.location == location &&
           record.info.artifact_id == artifact_id;
  };
  return FindFirst(records_, fits, BeginOf);
}

ReplicaRecordPtr ReplicaIndex::FindWith(std::string_view artifact_id, Location location,
                                        const std::optional<std::vector<uint32_t>>& chunks) const {
  const auto fits = [&](const ReplicaRecord& record) {
    return record.info.location == location && record.info.artifact_id == artifact_id &&
           (IsReady(record) || (chunks.has_value() && record.Has(*chunks)));
  };
  // A ready one is preferred: false comes before true.
  return FindFirst(records_, fits, [](const ReplicaRecord& record) { return !IsReady(record); });
}

ReplicaRecordPtr ReplicaIndex::FindSource(std::string_view artifact_id, const std::set<Location>& except,
                                          std::string_view receiver) const {
  const auto own = records_.find(receiver);
  const auto fits = [&](const ReplicaRecord& record) {
    // A replica may read from one that began before it, and not the other way round: so two never wait for
    // each other.
    const bool later = record.info.state == ReplicaState::kFilling &&
                       (own == records_.end() || record.begun > own->second->begun);
    return (IsReady(record) || (record.CanCopyFilling() && !later)) &&
           record.info.artifact_id == artifact_id && record.info.chunks_unverified == 0 &&
           !except.contains(record.info.location);
  };
  // From the fastest to read from to the slowest: host memory, a GPU, the disk; then those that have a part
  // only.
  const auto order = [](const ReplicaRecord& record) {
    const LocationKind kind = record.info.location.kind;
    const int rank = record.info.state == ReplicaState::kPartial ? 4
                     : !IsReady(record)                          ? 3
                     : kind == LocationKind::kDisk               ? 2
                     : kind == LocationKind::kGpu                ? 1
                                                                 : 0;
    return std::pair(rank, record.begun);
  };
  return FindFirst(records_, fits, order);
}

// By the same order as FindSource: only an earlier replica may be read, so only for an earlier one is it
// worth to wait.
bool ReplicaIndex::IsEarlierAllocating(std::string_view artifact_id, const std::set<Location>& except,
                                       std::string_view receiver) const {
  const auto own = records_.find(receiver);
  return own != records_.end() && std::ranges::any_of(records_, [&](const auto& entry) {
           const ReplicaRecord& other = *entry.second;
           // A replica on disk cannot be read before it is ready.
           return other.info.state == ReplicaState::kAllocating && other.info.artifact_id == artifact_id &&
                  other.info.location.kind != LocationKind::kDisk && !except.contains(other.info.location) &&
                  other.begun < own->second->begun;
         });
}

ReplicaRecordPtr ReplicaIndex::FindEarliest(std::span<const std::string> ids) const {
  const auto fits = [&](const ReplicaRecord& record) {
    return (IsReady(record) || record.CanCopyFilling()) &&
           std::ranges::find(ids, record.info.id) != ids.end();
  };
  return FindFirst(records_, fits, BeginOf);
}

std::optional<size_t> ReplicaIndex::CountGpuReceivers(std::string_view id) const {
  const auto given = records_.find(id);
  if (given == records_.end()) return std::nullopt;
  return std::ranges::count_if(records_, [&](const auto& entry) {
    const ReplicaRecord& other = *entry.second;
    return (other.info.state == ReplicaState::kAllocating || other.info.state == ReplicaState::kFilling) &&
           other.info.location.kind == LocationKind::kGpu && other.begun > given->second->begun &&
           other.info.artifact_id == given->second->info.artifact_id;
  });
}

ReplicaRecordPtr ReplicaIndex::FindVictim(Location pool, const std::set<std::string>& refused) const {
  const auto fits = [&](const ReplicaRecord& record) {
    return record.info.location == pool && record.IsEvictable() && !refused.contains(record.info.id);
  };
  // One that is being read is in use at this moment, and its readers lose their source.
  return FindFirst(records_, fits, [](const ReplicaRecord& record) {
    // Partial ones go before ready ones, and within each the one that was used longest ago.
    return std::tuple(record.info.leases > 0, record.info.state != ReplicaState::kPartial, record.use_order);
  });
}

}  // namespace tensorcast
