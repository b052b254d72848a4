// The replicas of a node by id, and the look-ups among them: which one to lease, to read from, to evict.
//
// Owns nothing but its entries and moves no state. Thread-compatible: guarded by the table's mutex.
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
  // REQUIRES: no other has its id.
  void Insert(ReplicaRecordPtr record);
  void Erase(std::string_view id) { records_.erase(id); }
  const absl::flat_hash_map<std::string, ReplicaRecordPtr>& all() const { return records_; }

  // NOT_FOUND.
  absl::StatusOr<ReplicaRecordPtr> Find(std::string_view id) const;
  // REQUIRES: it is there.
  ReplicaRecordPtr Get(std::string_view id) const;
  // The rest give null where there is none.
  ReplicaRecordPtr FindIn(ReplicaState state, std::string_view artifact_id, Location location) const;
  // A ready one, or one that has all of `chunks` where they are set.
  ReplicaRecordPtr FindWith(std::string_view artifact_id, Location location,
                            const std::optional<std::vector<uint32_t>>& chunks) const;
  // The best one to read from for the ingest that makes `receiver`: ready ones first, in host memory before
  // devices before disk, then one that fills and can be read, then a partial one; of equal ones that which
  // began first. None at a place in `except`, none that is not verified whole, and none that fills and began
  // after the receiver: so two ingests never wait for each other.
  ReplicaRecordPtr FindSource(std::string_view artifact_id, const std::set<Location>& except,
                              std::string_view receiver) const;
  // Whether one that FindSource may give later, and that began before the receiver, has no memory yet.
  bool IsEarlierAllocating(std::string_view artifact_id, const std::set<Location>& except,
                           std::string_view receiver) const;
  // Of these, ready or such as can be read, the one that began first.
  ReplicaRecordPtr FindEarliest(std::span<const std::string> ids) const;
  // How many of the same artifact are being made on GPUs that began after this one; nullopt: it is gone.
  std::optional<size_t> CountGpuReceivers(std::string_view id) const;
  // The least recently used evictable one of the pool. Partial ones without a reader go first, and those that
  // others are read from last.
  ReplicaRecordPtr FindVictim(Location pool, const std::set<std::string>& refused) const;

 private:
  absl::flat_hash_map<std::string, ReplicaRecordPtr> records_;
};

}  // namespace tensorcast
