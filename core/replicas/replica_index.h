// The replicas of a node by id, and the choice of a replica to lease, to read from or to evict.
//
// Owns only its entries and changes no state. Thread-compatible: guarded by the table's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/replica/replica.h"
#include "core/replicas/replica_record.h"

namespace tensorcast {

using ReplicaRecordPtr = std::shared_ptr<ReplicaRecord>;

class ReplicaIndex {
 public:
  // REQUIRES: no other record has its id.
  void Insert(ReplicaRecordPtr record);
  void Erase(std::string_view id) { records_.erase(id); }
  const absl::flat_hash_map<std::string, ReplicaRecordPtr>& all() const { return records_; }

  // NOT_FOUND for an unknown id.
  absl::StatusOr<ReplicaRecordPtr> Find(std::string_view id) const;
  // REQUIRES: the index has the id.
  ReplicaRecordPtr Get(std::string_view id) const;
  // The look-ups below return null if no replica qualifies.
  ReplicaRecordPtr FindIn(ReplicaState state, std::string_view artifact_id, Location location) const;
  // A ready replica; if there is none and `chunks` is set, a replica that has all these chunks.
  ReplicaRecordPtr FindWith(std::string_view artifact_id, Location location,
                            const std::optional<std::vector<uint32_t>>& chunks) const;
  // The best replica to read from for the ingest that makes `receiver`. The order is: ready replicas (host
  // memory, then devices, then disk), readable filling replicas, partial replicas. Among equal replicas, the
  // replica that began first is the best. Excludes locations in `except`, replicas with unverified chunks,
  // and filling replicas that began after the receiver. So two ingests never wait for each other.
  ReplicaRecordPtr FindSource(std::string_view artifact_id, const std::set<Location>& except,
                              std::string_view receiver) const;
  // Whether FindSource may later return a replica that has no memory now.
  bool IsEarlierAllocating(std::string_view artifact_id, const std::set<Location>& except,
                           std::string_view receiver) const;
  // Of the replicas `ids` that are ready or readable, the replica that began first.
  ReplicaRecordPtr FindEarliest(std::span<const std::string> ids) const;
  // The number of replicas of the same artifact that began after the replica `id` and are being made on GPUs;
  // nullopt if the replica `id` is gone.
  std::optional<size_t> CountGpuReceivers(std::string_view id) const;
  // The least recently used evictable replica of the pool. Partial replicas without a reader come first,
  // partial replicas with readers last.
  ReplicaRecordPtr FindVictim(Location pool, const std::set<std::string>& refused) const;

 private:
  absl::flat_hash_map<std::string, ReplicaRecordPtr> records_;
};

}  // namespace tensorcast
