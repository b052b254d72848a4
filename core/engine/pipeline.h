// One ingest at work: fetch -> verify -> place -> commit for every chunk of an image.
//
// Slots, a thread each, run these steps for one chunk after another, so that while one waits for the source
// another verifies and a third copies. The source bounds the fetches under way, the destination the buffers.
//
// Credit runs backwards. A slot takes a place with the source first (no more fetches than it takes at once;
// free again when the fetch ends), then a buffer of the destination (one of a staging ring, held until the
// chunk is in its place; a replica's own memory is always there), and fetches with both. So a slow device or
// disk stops the fetches for it, and a slow source holds no more buffers than it takes fetches. Fetches, and
// waits for a buffer, end with the context.
//
// When a source dies or lies, the slots finish what they have, and the next source gets only the chunks that
// are not done.
//
// Run is called once; progress may be read from any thread meanwhile. No lock is held across a call to a
// source, the provider, or the destination.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/engine/chunk_ledger.h"
#include "core/engine/destination.h"
#include "core/engine/progress.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// All pointers must outlive the pipeline.
struct PipelinePlan {
  std::string subject;  // the artifact, for messages
  const ImageLayout* layout = nullptr;
  // Null: a first ingest, which computes both digests of every chunk and checks the padding.
  const Manifest* expected = nullptr;
  Destination* destination = nullptr;
  SourceProvider* sources = nullptr;
  ProgressTracker* progress = nullptr;
  bool distrust_other_hosts = false;        // compare BLAKE3 too of what comes from another host
  std::function<RequestContext()> context;  // as it is now
  std::function<void(uint32_t)> on_chunk;   // this chunk is verified and in its place
};

struct IngestOutcome {
  absl::Status status;
  std::vector<ChunkDigests> digests;  // of every chunk when the status is OK
  std::vector<SourceChange> changes;
  uint32_t refetched_chunks = 0;
  uint32_t verified_chunks = 0;
};

class IngestPipeline {
 public:
  explicit IngestPipeline(PipelinePlan plan);

  // Blocks until every chunk is done, or no source is left, or the destination failed, or the context ended.
  // To be called once.
  IngestOutcome Run();

 private:
  struct SourceRun;  // one source while it is in use

  absl::Status RunSources();
  std::optional<SourceFailure> RunSource(ChunkSource& source);
  void NoteChanges(const std::optional<SourceFailure>& failure, const SourceInfo& next);
  void SlotLoop(SourceRun& run);
  std::optional<uint32_t> TakeChunk(SourceRun& run);
  void MoveChunk(SourceRun& run, uint32_t chunk);
  bool WantsBlake3(const SourceRun& run, uint32_t chunk) const;
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(SourceRun& run, const RequestContext& context,
                                                    const ChunkRequest& request);
  bool Verify(SourceRun& run, const ChunkRequest& request, std::optional<ChunkDigests> delivered);
  absl::Status Place(SourceRun& run, const ChunkRequest& request, const ChunkBuffer& buffer);
  void Commit(SourceRun& run, uint32_t chunk, uint64_t bytes);
  void EndFetch(SourceRun& run);
  // The chunk is not done. Puts it back for the next fetch; gives up the source as well, or the whole ingest.
  void PutBack(uint32_t chunk);
  void GiveUpSource(SourceRun& run, uint32_t chunk, absl::Status why, bool corrupt);
  void GiveUp(SourceRun& run, uint32_t chunk, absl::Status why);
  absl::Status CheckContext() const;
  int SlotCount(const ChunkSource& source) const;

  const PipelinePlan plan_;
  std::vector<ChunkDigests> digests_;  // each written by the slot that has the chunk
  mutable absl::Mutex mutex_;
  ChunkLedger ledger_ ABSL_GUARDED_BY(mutex_);
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);  // ends the whole ingest
  std::vector<SourceChange> changes_ ABSL_GUARDED_BY(mutex_);
  uint32_t refetched_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t verified_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
