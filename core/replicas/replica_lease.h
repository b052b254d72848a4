// ReplicaLease: a hold on a ready, partial or filling replica of the engine, with the place of its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "core/replica/availability.h"
#include "core/replica/replica.h"

namespace tensorcast {

class DeviceBlock;
class ReplicaStates;
struct ReplicaRecord;

// The place of a replica's bytes; the kind of the replica's location decides which field is set.
struct ReplicaMemory {
  const HostAllocation* host = nullptr;  // kCpu: the allocation when the lease began
  DevicePtr device;                      // kGpu: one allocation, image_bytes rounded up to 2 MiB
  int file = -1;                         // kDisk: descriptor of the packed file
  uint64_t file_image_offset = 0;        // kDisk: where the image begins in the packed file
};

// While a lease exists, the replica's memory is neither freed nor rewritten. The destructor ends the lease.
// (A LiveLease gives up its lease before a rewriting: commit_gate.h.) Thread-safe. Must not outlive the
// engine.
//
// A lease on a replica that is not ready stays valid when the replica becomes ready, when its ingest fails,
// and when the replica is removed. After a failure or a removal, the availability ends with the reason. The
// memory stays until the last lease ends.
class ReplicaLease {
 public:
  ~ReplicaLease();
  ReplicaLease(const ReplicaLease&) = delete;
  ReplicaLease& operator=(const ReplicaLease&) = delete;

  const std::string& replica_id() const;
  const Location& location() const;
  const std::shared_ptr<const Manifest>& manifest() const;
  const ReplicaMemory& memory() const { return memory_; }
  // The allocation of a replica on a GPU, else null. A copy of the pointer keeps the allocation after the
  // lease has ended.
  const std::shared_ptr<const DeviceBlock>& device_block() const { return device_; }
  // The span of the ingest that made the replica; not valid if the replica was found at the daemon's start.
  const TraceContext& made_by() const;
  // The chunks that may be read. Null: the replica was ready when it was leased, and all chunks may be read.
  const std::shared_ptr<const Availability>& availability() const { return availability_; }
  // True if, when the lease began, the replica lacked chunks and no ingest was fetching these chunks.
  bool partial() const { return partial_; }
  // The current memory of image bytes [offset, offset + bytes) of a replica in host memory. A partial replica
  // may get more memory during a lease. REQUIRES: the replica has these bytes.
  std::vector<ConstHostSpan> HostSpans(uint64_t offset, uint64_t bytes) const;

 private:
  friend class ReplicaStates;
  ReplicaLease(ReplicaStates* states, std::shared_ptr<ReplicaRecord> record, bool to_serve);

  ReplicaStates* const states_;
  const std::shared_ptr<ReplicaRecord> record_;
  const bool to_serve_;
  std::shared_ptr<const HostAllocation> host_;  // the allocation when the lease began; keeps its granules
  std::shared_ptr<const DeviceBlock> device_;
  const ReplicaMemory memory_;
  const std::shared_ptr<const Availability> availability_;
  const bool partial_;
};

}  // namespace tensorcast
