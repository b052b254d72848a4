// ChunkFetch: the fetch, verification and placement of one chunk. SourceInUse: a source of an ingest.
//
// SourceSet (source_set.h) owns both. One thread at a time uses a ChunkFetch. The ingest's mutex guards the
// fields that are marked as guarded below.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/ingest/destination.h"
#include "core/ingest/progress.h"
#include "core/replica/availability.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class ChunkPath;
struct SourceInUse;

struct ChunkFetch {
  SourceInUse* source = nullptr;  // outlives the fetch
  ChunkPath* path = nullptr;      // the source's path when the chunk was taken
  Cancellation cancellation;      // cancels only this fetch
  ChunkRequest request;
  RequestContext context;  // the ingest's context when the chunk was requested
  // The fetch has its buffer and waits only for its source. Other threads read this field under the mutex.
  std::atomic<bool> acquired = false;
  bool answered = false;  // the source delivered the chunk, or the fetch failed
  ChunkBuffer buffer;
  std::vector<ConstHostSpan> bytes;  // the fetched bytes in host memory; empty on a GPU
  SteadyTime start;
  SteadyTime placing_since;
  AwaitPlaced await_placed;      // null: the chunk is placed
  AwaitDigested await_digested;  // for a chunk that a GPU digests in place
  absl::StatusOr<std::optional<ChunkDigests>> digests;
  bool compared = true;  // for a known artifact: the digests were compared with the manifest
  // Guarded by the ingest's mutex.
  bool taken_back = false;      // cancelled because another source would deliver the chunk sooner
  bool completed_once = false;  // StartFetch returned or `done` was called; unused if the source blocks
};
using FetchPtr = std::shared_ptr<ChunkFetch>;

struct SourceInUse {
  std::unique_ptr<ChunkSource> source;
  std::shared_ptr<const Availability> availability;  // null: the source has every chunk
  Availability::Watch watch;                         // must end before `availability`
  std::shared_ptr<StageClock> clock;                 // thread-safe
  ChunkPath* path = nullptr;                         // the path of its chunks; guarded by the ingest's mutex
  int max_fetches = 1;
  bool blocks = true;     // a fetch occupies a slot
  bool end_seen = false;  // the end of `availability` was seen; guarded by the ingest's mutex
  // The fields below belong to SourceSet.
  int index = 0;                    // this source's index in the picker
  std::vector<FetchPtr> under_way;  // the fetches in flight
  int refusals = 0;                 // consecutive FAILED_PRECONDITION answers
  uint32_t delivered = 0;           // chunks that were placed
  // A chunk was taken back from this source, and the source has delivered no chunk since then.
  bool overtaken = false;
  std::optional<SourceFailure> failure;  // set: the source is being given up

  bool in_use() const { return !failure.has_value(); }
};

}  // namespace tensorcast
