// The host pool of the previous daemon, as the keeper holds it: segments, records of replicas, and attached
// processes. Chooses the segments with which the new pool begins. The keeper holds everything until
// KeptPool::Attach.
//
// Call in this order: TakeSegments, CheckTakesAll, TakeContents. Drops unreadable records with a warning.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/artifact/manifest.h"
#include "core/memory/host_pool.h"
#include "daemon/keeper/attachments.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/kept_record.h"

namespace tensorcast::daemon {

class PreviousPool {
 public:
  struct Replica {
    KeptRecord record;
    std::shared_ptr<const Manifest> manifest;
  };
  // What the keeper holds besides the segments.
  struct Contents {
    std::vector<std::string> names;  // of everything that the keeper holds
    std::vector<Replica> replicas;
    std::vector<Attachment> holders;                     // processes that have not ended
    absl::flat_hash_map<std::string, uint64_t> outside;  // mapped segments outside the new pool -> bytes
    std::vector<std::string> room;                       // names of new segments: room for `outside`
  };

  PreviousPool() = default;  // nothing was kept
  explicit PreviousPool(std::vector<KeptDescriptor> all);

  // The size of the kept segments in bytes, if this size suits a pool of `pool_bytes`; else `otherwise`.
  uint64_t SegmentBytes(uint64_t pool_bytes, uint64_t otherwise) const;
  // The kept segments to reuse, at most `max_bytes`. Takes the segments that processes map, and then all
  // segments of one replica after another; replicas with fewer segments come first. Adds new segments without
  // a descriptor, which reserve room for mapped memory outside the pool.
  std::vector<KeptSegment> TakeSegments(uint64_t pool_bytes, uint64_t segment_bytes, uint64_t max_bytes);
  // The kept replicas with a segment that the pool did not take.
  std::vector<const Replica*> FindWithoutRoom(const HostPool& pool) const;
  // FAILED_PRECONDITION if `pool` is smaller than the kept pool and has no room for some kept replicas. The
  // error names these replicas; KeptPool::Attach would release them.
  absl::Status CheckTakesAll(const HostPool& pool) const;
  Contents TakeContents() { return std::exchange(contents_, {}); }
  // The number of replicas on GPUs, which ended with the previous daemon.
  uint32_t gone_on_gpus() const { return gone_on_gpus_; }

 private:
  void Add(KeptDescriptor kept);
  void AddReplica(std::string_view artifact_id, int record_file);
  std::vector<KeptSegment> TakeRoom(uint64_t segment_bytes, uint64_t max_bytes);

  uint64_t bytes_ = 0;  // size of the kept pool; 0: not known
  uint32_t gone_on_gpus_ = 0;
  std::vector<KeptSegment> segments_;
  Contents contents_;
};

}  // namespace tensorcast::daemon
