// Encodes the difference from an earlier version (the base) while the new version (the target) is put. Each
// thread that copies a chunk compares it with the base's chunk, and keeps the changes in the host pool.
//
//   the put's source ─► chunk in the target's memory ─┐
//                                        base's chunk ┴► record, in scratch memory of the pool
//
// The base is leased from the first copied chunk to the end of Finish. Each copying thread uses a few chunks
// of memory outside the pool. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/difference/chunk_encoder.h"
#include "core/difference/difference_encoder.h"
#include "core/engine/engine.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {

class DifferenceEncoding : public std::enable_shared_from_this<DifferenceEncoding> {
 public:
  // REQUIRES: the target has the layout of `base`. `context`: the put's context. `engine` must outlive this
  // object.
  DifferenceEncoding(StoreEngine* engine, std::shared_ptr<const Manifest> base,
                     const RequestContext& context);
  ~DifferenceEncoding();

  // Returns a provider of the same sources that also encodes each fetched chunk. Use the provider for one
  // ingest of a new artifact to host memory.
  std::shared_ptr<SourceProvider> Wrap(std::shared_ptr<SourceProvider> sources);

  // Encodes one chunk, unless the chunk is encoded already; `target` has the chunk's bytes. May be called
  // concurrently for different chunks.
  void Encode(const RequestContext& context, uint32_t chunk, std::span<const HostSpan> target,
              const std::optional<ChunkDigests>& digests);

  // Call Finish once, after the ingest. Encodes the remaining chunks on a few threads. nullopt: the
  // difference would be larger than half the target. NOT_FOUND: the base was evicted before the comparison;
  // RESOURCE_EXHAUSTED: the pool has no room for the records.
  absl::StatusOr<std::optional<EncodedDifference>> Finish(const RequestContext& context,
                                                          const ReplicaLease& target);
  // When the first chunk was compared; InfinitePast: no chunk was compared yet.
  SteadyTime begun() const;
  // The span of the ingest that made the base; invalid if unknown.
  TraceContext base_made_by() const;

 private:
  // The lease on the base. Null if the base is gone; base_status_ has the error.
  std::shared_ptr<const ReplicaLease> Base();
  std::unique_ptr<ChunkEncoder> TakeEncoder();
  void GiveBack(std::unique_ptr<ChunkEncoder> encoder);

  StoreEngine& engine_;
  const std::shared_ptr<const Manifest> base_;
  DifferenceEncoder encoder_;
  mutable absl::Mutex mutex_;
  absl::Status base_status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ReplicaLease> base_lease_ ABSL_GUARDED_BY(mutex_);
  SteadyTime begun_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  TraceContext base_made_by_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ChunkEncoder>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
