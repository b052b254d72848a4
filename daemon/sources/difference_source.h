// A source that makes chunks of the wanted version from an earlier version (the base) and differences. The
// base is in host memory or on a GPU of this node. The differences are in host memory.
//
//   base ──d1──► version ──d2──► wanted      each chunk: the base's bytes with all changes, in one pass
//
// An advance (core/ingest/advance.h) writes the target over the base, and this source reads the base there.
//
// If base and target are on one GPU, or on two GPUs that reach each other, the target's GPU makes and digests
// the chunks (device_rebuild.h). Otherwise the host makes the chunks.
//
// Chunks may be fetched at the same time. DATA_LOSS for a chunk that base and differences do not make.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/device/copy_queue.h"
#include "core/device/device_runtime.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {

// Remembers a chunk that could not be made, or was made wrong.
class WrongChunk {
 public:
  void Note(uint32_t chunk) { chunk_.store(chunk, std::memory_order_relaxed); }
  std::optional<uint32_t> chunk() const {
    const int64_t chunk = chunk_.load(std::memory_order_relaxed);
    return chunk < 0 ? std::nullopt : std::optional<uint32_t>(static_cast<uint32_t>(chunk));
  }

 private:
  std::atomic<int64_t> chunk_ = -1;
};

// What the source reads: a base, and the differences in the order in which to apply them.
struct LeasedPath {
  // Exactly one of the next two is set.
  std::unique_ptr<ReplicaLease> base;
  std::shared_ptr<const RetiredReplica> advanced;
  std::vector<std::unique_ptr<ReplicaLease>> differences;
  // Copies from a base on a GPU; null for a base in host memory. Declared last, so that its copies end before
  // the base's memory is released.
  std::unique_ptr<CopyQueue> from_gpu;

  const Manifest& base_manifest() const { return base != nullptr ? *base->manifest() : *advanced->manifest; }
  const TraceContext& base_made_by() const { return base != nullptr ? base->made_by() : advanced->made_by; }
  // The image of a base on a GPU; null for a base in host memory.
  DevicePtr base_on_gpu() const;
};

struct OpenedDifferences {
  std::unique_ptr<ChunkSource> source;
  // True if the source has all chunks, apart from those that an advance leaves in place.
  bool whole = false;
};
// The source has each chunk for which every difference of the path has a record. A chunk that a difference
// leaves out (RecordMode::kWhole) comes from other sources. FAILED_PRECONDITION if the source would have no
// chunk. Any other error means that a difference is damaged. `devices` must outlive the source, and may be
// null if the base is in host memory. `wrong` gets a chunk that was not made, or was made wrong.
absl::StatusOr<OpenedDifferences> OpenDifferences(const RequestContext& context, DeviceRuntime* devices,
                                                  std::shared_ptr<const Manifest> target, LeasedPath leased,
                                                  std::shared_ptr<WrongChunk> wrong);

}  // namespace tensorcast::daemon
