// ChunkFlow fetches, verifies and places the chunks of one ingest, along the path of their source
// (chunk_path.h). It also handles chunks that fail.
//
//   Take ─► Begin ─► source ─► Arrived ─► AwaitPlace ─► done, or missing again
//
// A chunk is requested from one source at a time. The fetch of a chunk ends before the next request for that
// chunk. If a source fails or sends wrong bytes, the ingest gives up only that source. The ingest cancels all
// fetches from that source, and requests their chunks from other sources.
//
// Thread-safe; only one thread at a time may use the same chunk.
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
  // `state` must outlive this object.
  explicit ChunkFlow(IngestState* state);

  const ChunkPaths& paths() const { return paths_; }
  // The next chunk to request while `slots` slots run; null if none can be requested now. REQUIRES: the
  // caller holds the state's mutex.
  FetchPtr Take(SteadyTime now, int slots);
  // Requests the chunk. May block for a buffer and, if the source blocks, for the bytes.
  void Begin(const FetchPtr& fetch);
  // Called when the fetch has ended. Verifies the chunk and begins to place it, or handles the error of the
  // fetch.
  void Arrived(const FetchPtr& fetch);
  // Blocks until the chunk is placed, or has failed.
  void AwaitPlace(const FetchPtr& fetch);

  // The digests of all chunks that were fetched. REQUIRES: all other threads have ended.
  std::vector<ChunkDigests> TakeDigests() { return verifier_.TakeDigests(); }

 private:
  void Fetch(const FetchPtr& fetch);
  void NoteFetched(ChunkFetch& fetch);
  void PassOn(const FetchPtr& fetch);
  void Continue(const FetchPtr& fetch, PathStep step);
  void Finish(ChunkFetch& fetch, bool placed);
  // The source uses its fallback path from now on, because of `why`.
  void UseFallback(ChunkFetch& fetch, const absl::Status& why);
  // The chunk becomes missing again, because of `step`.
  void PutBack(ChunkFetch& fetch, PathStep step);
  void EndInVain(ChunkFetch& fetch);
  // Whether the fetch ended without a fault of its source, judged by the ingest's current context.
  bool IsExcused(ChunkFetch& fetch, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex);

  IngestState* const state_;
  ChunkVerifier verifier_;
  const ChunkPaths paths_;
};

}  // namespace tensorcast
