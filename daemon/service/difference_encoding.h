// A difference while its target is put: each chunk is compared with the base's as soon as the ingest has
// copied it, by the thread that copied it, and what changed is kept in the host pool.
//
//   the put's source ─► chunk in the target's memory ─┐
//                                        base's chunk ┴► record, in scratch memory of the pool
//
// The base is leased from the first chunk that is copied on, so after the target has its memory, to the end
// of Finish. Beyond the pool it takes a few chunks of memory for each thread that copies. Thread-safe.
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
#include "core/difference/difference_encoder.h"
#include "core/engine/engine.h"
#include "core/source/chunk_source.h"

namespace tensorcast::daemon {

class DifferenceEncoding : public std::enable_shared_from_this<DifferenceEncoding> {
 public:
  // Of a target with the layout of `base`, in a put with this context. `engine` must outlive it.
  DifferenceEncoding(StoreEngine* engine, std::shared_ptr<const Manifest> base,
                     const RequestContext& context);
  ~DifferenceEncoding();

  // The same sources, and what they fetch is encoded. For one ingest to host memory, of a new artifact.
  std::shared_ptr<SourceProvider> Wrap(std::shared_ptr<SourceProvider> sources);

  // `target`: the bytes of the chunk. One that was encoded already stays as it is. For different chunks at a
  // time.
  void Encode(const RequestContext& context, uint32_t chunk, std::span<const HostSpan> target,
              const std::optional<ChunkDigests>& digests);

  // Once, after the ingest: encodes what that did not, on a few threads. nullopt: the difference would be
  // larger than half the target. NOT_FOUND: the base was evicted before it was compared; RESOURCE_EXHAUSTED:
  // the pool has no room for the records.
  absl::StatusOr<std::optional<EncodedDifference>> Finish(const RequestContext& context,
                                                          const ReplicaLease& target);
  // When the first chunk was compared; InfinitePast: none was.
  SteadyTime begun() const;
  // The span of the ingest that made the base; not valid where none did, or the base was not leased.
  TraceContext base_made_by() const;

 private:
  // Null where the base has gone; base_status_ says so.
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
