// The chunks of one ingest: fetched, verified and placed by the way of their source (chunk_path.h), and what
// becomes of those that end before.
//
//   Take ─► Begin ─► source ─► Arrived ─► AwaitPlace ─► done, or missing again: it is requested anew
//
// A chunk is requested from one source at a time, so its place has one writer. A fetch has a cancellation of
// its own. It ends, cancelled or not, before its chunk is requested from another source. A source that fails,
// or sends wrong bytes, is given up alone: its other fetches are cancelled and their chunks go to the others.
//
// Thread-safe: each chunk by one thread at a time.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/ingest/chunk_fetch.h"
#include "core/ingest/chunk_path.h"
#include "core/ingest/chunk_verifier.h"
#include "core/ingest/ingest_state.h"

namespace tensorcast {

class ChunkFlow {
 public:
  // `state` must outlive it.
  explicit ChunkFlow(IngestState* state);

  const ChunkPaths& paths() const { return paths_; }
  // The next chunk to request, where one can be while so many slots run; null: none now. REQUIRES: the
  // state's mutex.
  FetchPtr Take(SteadyTime now, int slots);
  // May block for a buffer, and for its bytes where the source blocks.
  void Begin(const FetchPtr& fetch);
  void Arrived(const FetchPtr& fetch);
  // Blocks until it is in its place, or never will be.
  void AwaitPlace(const FetchPtr& fetch);

  // The digests of each chunk that was brought. REQUIRES: all other threads have ended.
  std::vector<ChunkDigests> TakeDigests() { return verifier_.TakeDigests(); }

 private:
  void Fetch(const FetchPtr& fetch);  // as its request says
  void NoteFetched(ChunkFetch& fetch);
  void PassOn(const FetchPtr& fetch);
  void Continue(const FetchPtr& fetch, PathStep step);
  void Finish(ChunkFetch& fetch, bool placed);
  // Its source is asked in another way from now on, because of `why`.
  void UseFallback(ChunkFetch& fetch, const absl::Status& why);
  // It is missing again, by `step`.
  void PutBack(ChunkFetch& fetch, PathStep step);
  void EndInVain(ChunkFetch& fetch);
  // Whether that was not a fault of its source, as the ingest's context is now.
  bool IsExcused(ChunkFetch& fetch, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex);

  IngestState* const state_;
  ChunkVerifier verifier_;
  const ChunkPaths paths_;
};

}  // namespace tensorcast
