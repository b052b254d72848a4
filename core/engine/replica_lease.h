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

// Where a ready replica's bytes are; exactly one of the three is meant, by info.location.kind.
struct ReplicaMemory {
  const HostAllocation* host = nullptr;  // kCpu
  DevicePtr device;                      // kGpu: one allocation, image_bytes rounded up to 2 MiB
  int file = -1;                         // kDisk: descriptor of the packed file...
  uint64_t file_image_offset = 0;        // ...and where its image begins
};

// A hold on a ready replica: while it lives the replica is neither evicted nor rewritten. Movable;
// thread-compatible; may outlive the engine's interest in the replica but not the engine.
class ReplicaLease {
 public:
  virtual ~ReplicaLease() = default;
  virtual const std::string& replica_id() const = 0;
  virtual const Location& location() const = 0;
  virtual const std::shared_ptr<const Manifest>& manifest() const = 0;
  virtual const ReplicaMemory& memory() const = 0;
  // The span of the ingest that made the replica; not valid for one that was found at start.
  virtual const TraceContext& made_by() const = 0;
};

}  // namespace tensorcast
