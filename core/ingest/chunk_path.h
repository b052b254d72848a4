// The way of a chunk from its source to its place in the replica: fetched, verified and placed. One way is
// chosen for each source when it joins.
//
//   in place   host memory: the source writes to the replica's own memory
//   staged     a GPU or a file: the source writes to a staging buffer, which is then placed. What it has in
//              page-locked memory of this node is placed from there, without a buffer
//   copied     a GPU, from another GPU of this process: copied straight to its place and digested there
//   written    a GPU, from another host: the source writes straight to its place, and it is digested there
//
// The last two use no host memory. Where one does not work, it names the way that its source uses from then
// on: a fetch through the host shows which end is at fault.
//
// Thread-safe: each chunk by one thread at a time. No call is made under a lock.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "core/ingest/chunk_fetch.h"
#include "core/ingest/chunk_verifier.h"
#include "core/ingest/ingest_state.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// What follows for a chunk.
struct PathStep {
  enum class Next : uint8_t {
    kFetch,     // its source is to be asked for it, as the request says; then Arrived
    kFetched,   // its bytes are where they can be read: Arrived
    kAwait,     // it is on the way to its place: Await
    kPlaced,    // it is in its place, and right as far as it is compared
    kNoBuffer,  // none came, for the reason in `status`
    kWrong,     // its bytes are not what `status` says they should be: the source's fault
    kFailed,    // by `status`, which is not its source's fault: the ingest ends
    kBlocked,   // this way does not work, by `status`: `fallback()` is used from here on
  };
  Next next = Next::kPlaced;
  absl::Status status = {};
};

class ChunkPath {
 public:
  virtual ~ChunkPath() = default;

  // How many chunks can be under way at once.
  virtual int max_chunks() const = 0;
  // Null: there is none, and no step gives kBlocked.
  virtual ChunkPath* fallback() const { return nullptr; }
  // Sets how many fetches its source is asked for at once, and whether each takes a slot.
  virtual void Prepare(SourceInUse& /*source*/) const {}

  // `fetch` has its range and context. May block for a buffer, to the context's end.
  virtual PathStep Begin(ChunkFetch& fetch) = 0;
  // Its source has given it. Verifies it, and places it or begins to.
  virtual PathStep Arrived(ChunkFetch& fetch) = 0;
  // Blocks until it is in its place, or never will be.
  virtual PathStep Await(ChunkFetch& fetch) = 0;
};

// The ways that one ingest has. Thread-safe.
class ChunkPaths {
 public:
  // Both must outlive it.
  ChunkPaths(const IngestPlan& plan, ChunkVerifier* verifier);
  ~ChunkPaths();
  ChunkPaths(const ChunkPaths&) = delete;
  ChunkPaths& operator=(const ChunkPaths&) = delete;

  // For all chunks of a source. Not while one of its fetches is under way.
  ChunkPath* Choose(ChunkSource& source) const;

 private:
  const IngestPlan& plan_;
  const std::unique_ptr<ChunkPath> by_host_;  // in place or staged
  const std::unique_ptr<ChunkPath> copied_;
  const std::unique_ptr<ChunkPath> written_;
};

}  // namespace tensorcast
