// One chunk of an ingest from the moment it is taken to its end, and the source that it comes from.
//
// Owned by the set of sources (source_set.h). A fetch is written by one thread at a time, as the chunk is
// handed on; what says so is guarded by the ingest's mutex.
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
  ChunkPath* path = nullptr;      // its source's when the chunk was taken
  Cancellation cancellation;      // of this fetch alone
  ChunkRequest request;
  RequestContext context;  // as it was when the chunk was requested
  // It has its buffer, so what it still lacks is its source's. Read by others under the mutex.
  std::atomic<bool> acquired = false;
  bool answered = false;  // its source gave the chunk, or never will
  ChunkBuffer buffer;
  std::vector<ConstHostSpan> bytes;  // where they are once they are fetched; none on a GPU
  SteadyTime start;
  SteadyTime placing_since;
  AwaitPlaced await_placed;      // null: there is nothing to wait for
  AwaitDigested await_digested;  // of one that a GPU digests in its place
  absl::StatusOr<std::optional<ChunkDigests>> digests;
  bool compared = true;  // with the manifest, of a known artifact
  // Under the ingest's mutex.
  bool taken_back = false;      // because another source gives it sooner
  bool completed_once = false;  // of a source that does not block: it has started the fetch, or told its end
};
using FetchPtr = std::shared_ptr<ChunkFetch>;

struct SourceInUse {
  std::unique_ptr<ChunkSource> source;
  std::shared_ptr<const Availability> availability;  // null: it has everything
  Availability::Watch watch;                         // ends before the availability
  std::shared_ptr<StageClock> clock;                 // read by others while it runs
  ChunkPath* path = nullptr;                         // of its chunks; under the ingest's mutex
  int max_fetches = 1;
  bool blocks = true;     // a fetch takes a slot
  bool end_seen = false;  // of the availability; under the ingest's mutex
  // The set's.
  int index = 0;  // in the picker
  std::vector<FetchPtr> under_way;
  int refusals = 0;        // in a row
  uint32_t delivered = 0;  // chunks that are in their place
  // A chunk that it was asked for was taken back, and it has given none since.
  bool overtaken = false;
  std::optional<SourceFailure> failure;  // it is being given up

  bool in_use() const { return !failure.has_value(); }
};

}  // namespace tensorcast
