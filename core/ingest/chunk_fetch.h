// ChunkFetch: one chunk of an ingest, from the moment when it is taken to its end. SourceInUse: the source
// that it comes from.
//
// SourceSet (source_set.h) owns both. One thread at a time writes to a fetch, as the chunk is handed on.
// Fields that say so are guarded by the ingest's mutex.
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
  // The fetch has its buffer, so it waits only for its source. Other threads read this under the mutex.
  std::atomic<bool> acquired = false;
  bool answered = false;  // the source gave the chunk, or never will
  ChunkBuffer buffer;
  std::vector<ConstHostSpan> bytes;  // the fetched bytes in host memory; empty on a GPU
  SteadyTime start;
  SteadyTime placing_since;
  AwaitPlaced await_placed;      // null: there is nothing to wait for
  AwaitDigested await_digested;  // for a chunk that a GPU digests in place
  absl::StatusOr<std::optional<ChunkDigests>> digests;
  bool compared = true;  // for a known artifact: the digests were compared with the manifest
  // Guarded by the ingest's mutex.
  bool taken_back = false;      // because another source gives the chunk sooner
  bool completed_once = false;  // for a source that does not block: it started the fetch, or reported its end
};
using FetchPtr = std::shared_ptr<ChunkFetch>;

struct SourceInUse {
  std::unique_ptr<ChunkSource> source;
  std::shared_ptr<const Availability> availability;  // null: the source has every chunk
  Availability::Watch watch;                         // must end before `availability`
  std::shared_ptr<StageClock> clock;                 // other threads read it meanwhile
  ChunkPath* path = nullptr;                         // of its chunks; guarded by the ingest's mutex
  int max_fetches = 1;
  bool blocks = true;     // a fetch occupies a slot
  bool end_seen = false;  // the end of `availability` was seen; guarded by the ingest's mutex
  // The fields below belong to SourceSet.
  int index = 0;  // in the picker
  std::vector<FetchPtr> under_way;
  int refusals = 0;        // in a row
  uint32_t delivered = 0;  // chunks that were placed
  // A chunk was taken back from this source, and it has given none since.
  bool overtaken = false;
  std::optional<SourceFailure> failure;  // set: the source is being given up

  bool in_use() const { return !failure.has_value(); }
};

}  // namespace tensorcast
