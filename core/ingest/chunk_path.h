// A ChunkPath fetches, verifies and places the chunks of one source. The ingest chooses the path when the
// source joins.
//
//   in place   to host memory: the source writes to the replica's own memory
//   staged     to a GPU or a file: the source writes to a staging buffer, from which the chunk is placed.
//              Bytes in page-locked memory of this node are placed without a buffer
//   copied     to a GPU, from another GPU of this process: the chunk is copied to its place
//   uploaded   to a GPU, from page-locked memory of this node: the chunk is copied to its place
//   written    to a GPU, from another host or from a difference: the source writes the chunk to its place
//
// On the last three paths, the GPU digests each chunk to be compared when it is in its place. These paths do
// not use the host's processor; "copied" and "written" also use no host memory. If one of these paths fails,
// the source uses fallback() from then on. The fallback shows whether the source is at fault.
//
// Thread-safe; only one thread at a time may use the same chunk. The caller holds no lock.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "core/ingest/chunk_fetch.h"
#include "core/ingest/chunk_verifier.h"
#include "core/ingest/ingest_state.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// The next step of a chunk.
struct PathStep {
  enum class Next : uint8_t {
    kFetch,     // fetch the chunk as `request` says, then call Arrived
    kFetched,   // the chunk's bytes can be read: call Arrived
    kAwait,     // the chunk is being placed: call Await
    kPlaced,    // the chunk is in its place, with right bytes if they were compared
    kNoBuffer,  // the chunk got no buffer; `status` has the reason
    kWrong,     // the chunk's bytes are wrong (`status`); the source is at fault
    kFailed,    // the ingest fails with `status`; the source is not at fault
    kBlocked,   // this path does not work (`status`): use fallback() from now on
  };
  Next next = Next::kPlaced;
  absl::Status status = {};
};

class ChunkPath {
 public:
  virtual ~ChunkPath() = default;

  // The max number of chunks in flight.
  virtual int max_chunks() const = 0;
  // The path to use after kBlocked. Null if no step returns kBlocked.
  virtual ChunkPath* fallback() const { return nullptr; }
  // Sets `max_fetches` and `blocks` of a source that uses this path.
  virtual void Prepare(SourceInUse& /*source*/) const {}

  // Begins the fetch. May block for a buffer until the context ends. REQUIRES: the range and the context of
  // the fetch are set.
  virtual PathStep Begin(ChunkFetch& fetch) = 0;
  // Called when the source has delivered the chunk. Verifies the chunk, and places it or begins to place it.
  virtual PathStep Arrived(ChunkFetch& fetch) = 0;
  // Blocks until the chunk is placed, or has failed.
  virtual PathStep Await(ChunkFetch& fetch) = 0;
};

// The paths of one ingest. Thread-safe.
class ChunkPaths {
 public:
  // `plan` and `verifier` must outlive this object.
  ChunkPaths(const IngestPlan& plan, ChunkVerifier* verifier);
  ~ChunkPaths();
  ChunkPaths(const ChunkPaths&) = delete;
  ChunkPaths& operator=(const ChunkPaths&) = delete;

  // The path for all chunks of a source. REQUIRES: no fetch of the source is in flight.
  ChunkPath* Choose(ChunkSource& source) const;

 private:
  const IngestPlan& plan_;
  const std::unique_ptr<ChunkPath> by_host_;  // in place or staged
  const std::unique_ptr<ChunkPath> copied_;
  const std::unique_ptr<ChunkPath> uploaded_;
  const std::unique_ptr<ChunkPath> written_;
};

}  // namespace tensorcast
