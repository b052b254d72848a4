// A ChunkPath brings a chunk from its source to its place in the replica: it fetches, verifies and places the
// chunk. The ingest chooses a path for each source when the source joins.
//
//   in place   to host memory: the source writes to the replica's own memory
//   staged     to a GPU or a file: the source writes to a staging buffer, from which the chunk is placed.
//              Bytes in page-locked memory of this node are placed without a buffer
//   copied     to a GPU, from another GPU of this process: copied straight to its place and digested there
//   uploaded   to a GPU, from page-locked memory of this node: copied straight to its place; the GPU
//              digests it there
//   written    to a GPU, from another host or made from a difference: the source writes straight to its
//              place; the GPU digests it there
//
// The last three use no processor of the host; "copied" and "written" also use no host memory. If such a path
// does not work, its source uses fallback() from then on: a fetch through the host shows which end is at
// fault.
//
// Thread-safe; only one thread at a time may use the same chunk. No call is made under a lock.
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
    kFetch,     // fetch the chunk from its source, as `request` says, then call Arrived
    kFetched,   // its bytes can be read: call Arrived
    kAwait,     // it is being placed: call Await
    kPlaced,    // it is in its place; if it was compared, its bytes are right
    kNoBuffer,  // it got no buffer; `status` has the reason
    kWrong,     // its bytes are wrong (`status`), which is the source's fault
    kFailed,    // an error (`status`) that is not the source's fault: the ingest ends
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

  // Begins the fetch; its range and context are set. May block for a buffer until the context ends.
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
