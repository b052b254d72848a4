// A hold on a ready replica of the engine, and where its bytes are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "core/replica/replica.h"

namespace tensorcast {

class ReplicaTable;
struct ReplicaRecord;

// Where a ready replica's bytes are; exactly one of the three is meant, by its location's kind.
struct ReplicaMemory {
  const HostAllocation* host = nullptr;  // kCpu
  DevicePtr device;                      // kGpu: one allocation, image_bytes rounded up to 2 MiB
  int file = -1;                         // kDisk: descriptor of the packed file...
  uint64_t file_image_offset = 0;        // ...and where its image begins
};

// While it lives the replica is neither evicted nor rewritten; destroying it ends the hold. May be used by
// several threads at once: what it tells does not change. Must not outlive the engine.
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

 private:
  friend class ReplicaTable;
  ReplicaLease(ReplicaTable* table, std::shared_ptr<ReplicaRecord> record);

  ReplicaTable* const table_;
  const std::shared_ptr<ReplicaRecord> record_;
  const ReplicaMemory memory_;
};

}  // namespace tensorcast
