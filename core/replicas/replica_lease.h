// A hold on a replica of the engine, ready, partial or one that fills, and where its bytes are.
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

class ReplicaStates;
struct ReplicaRecord;

// Where a replica's bytes are; exactly one of the three is meant, by its location's kind.
struct ReplicaMemory {
  const HostAllocation* host = nullptr;  // kCpu: as it was when the lease began
  DevicePtr device;                      // kGpu: one allocation, image_bytes rounded up to 2 MiB
  int file = -1;                         // kDisk: descriptor of the packed file...
  uint64_t file_image_offset = 0;        // ...and where its image begins
};

// While it lives the replica's memory is neither freed nor rewritten; destroying it ends the hold. May be
// used by several threads at once: what it tells does not change, but for the availability. Must not outlive
// the engine.
//
// One that was taken while the replica was not ready goes on when that is, and also when its ingest failed or
// the replica is to go: the availability says so, and the memory that it names stays as it is until the last
// such lease ends.
class ReplicaLease {
 public:
  ~ReplicaLease();
  ReplicaLease(const ReplicaLease&) = delete;
  ReplicaLease& operator=(const ReplicaLease&) = delete;

  const std::string& replica_id() const;
  const Location& location() const;
  const std::shared_ptr<const Manifest>& manifest() const;
  const ReplicaMemory& memory() const { return memory_; }
  // The span of the ingest that made the replica; not valid for one that was found at start.
  const TraceContext& made_by() const;
  // Which chunks are there: only those may be read. Null: the replica was ready when it was leased.
  const std::shared_ptr<const Availability>& availability() const { return availability_; }
  // When it was leased, chunks were missing that no ingest was bringing.
  bool partial() const { return partial_; }
  // The memory behind image bytes [offset, offset + bytes) of a replica in host memory, as it is now: a
  // partial replica gets more while it is leased. REQUIRES: they are there.
  std::vector<ConstHostSpan> HostSpans(uint64_t offset, uint64_t bytes) const;

 private:
  friend class ReplicaStates;
  ReplicaLease(ReplicaStates* states, std::shared_ptr<ReplicaRecord> record, bool to_serve);

  ReplicaStates* const states_;
  const std::shared_ptr<ReplicaRecord> record_;
  const bool to_serve_;
  std::shared_ptr<const HostAllocation> host_;  // keeps its granules though the replica's are more by now
  const ReplicaMemory memory_;
  const std::shared_ptr<const Availability> availability_;
  const bool partial_;
};

}  // namespace tensorcast
