// The sources that an ingest uses, and the chunks in flight from each. Has no threads; the pipeline's mutex
// guards it.
//
// A source joins in Add and leaves in TakeRetired. GiveUp ends the requests to a source; TakeRetired returns
// the source after its last fetch was removed. TakeRetired also returns a source that has delivered all its
// chunks and will get no more chunks.
//
// The calls for a fetch are, in this order: Take; Fetched, if the bytes arrive; Done or PutBack; Remove.
//
// Thread-compatible. The caller cancels the returned fetches and destroys the returned sources without the
// pipeline's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/ingest/chunk_fetch.h"
#include "core/ingest/chunk_picker.h"

namespace tensorcast {

class SourceSet {
 public:
  // For an image of `chunks` chunks. `wanted` are the chunks to fetch, ascending; not set: all. `seed` is for
  // the ChunkPicker.
  SourceSet(uint32_t chunks, const std::optional<std::vector<uint32_t>>& wanted, uint64_t seed);
  SourceSet(const SourceSet&) = delete;
  SourceSet& operator=(const SourceSet&) = delete;

  // Adds a source, and sets only the fields of SourceInUse that belong to SourceSet (chunk_fetch.h).
  void Add(std::unique_ptr<SourceInUse> source);
  // Removes and returns a retired source. A source retires when it has no fetch in flight and was either
  // given up (then it has a `failure`) or has delivered all its chunks (then it has none). Null if no source
  // has retired.
  std::unique_ptr<SourceInUse> TakeRetired();
  bool HasRetired() const;
  // Removes and returns the remaining sources, at the end of the ingest.
  std::vector<std::unique_ptr<SourceInUse>> TakeAll();
  // Returns the fetches to cancel: all of the source's fetches in flight, or none if it was given up before.
  [[nodiscard]] std::vector<Cancellation> GiveUp(SourceInUse& source, absl::Status why, bool corrupt);

  // The next chunk to fetch, from any source; null if there is none now.
  FetchPtr Take(SteadyTime now);
  void Fetched(ChunkFetch& fetch, SteadyTime now);  // the chunk's bytes arrived
  void Done(ChunkFetch& fetch);                     // the chunk is placed
  void PutBack(ChunkFetch& fetch);                  // the chunk is missing again
  void CountLost(ChunkFetch& fetch);                // counts a chunk that its source lost; after PutBack
  void Remove(ChunkFetch& fetch);                   // REQUIRES: done or put back
  // Fetches to cancel because another source would deliver their chunk sooner.
  [[nodiscard]] std::vector<Cancellation> TakeBackOverdue(SteadyTime now);
  std::vector<Cancellation> UnderWay() const;
  // Marks sources that are `overtaken` (chunk_fetch.h) as given up, but keeps at least one source. Called at
  // the end, when no fetch is in flight.
  void GiveUpOvertaken();

  // All sources, including those that are being given up.
  const std::vector<std::unique_ptr<SourceInUse>>& sources() const { return sources_; }
  int in_use() const;
  std::string NamesInUse() const;  // for messages
  SourceInUse* AnyInUse() const;   // null: none
  int under_way() const { return under_way_; }
  uint32_t missing() const { return picker_.missing(); }
  bool all_done() const { return picker_.all_done(); }
  uint32_t refetched() const { return refetched_; }
  uint64_t fetched() const { return fetched_; }                // chunks from all sources, with repetition
  uint64_t received_bytes() const { return received_bytes_; }  // over the network, with repetition

 private:
  bool IsRetired(const SourceInUse& source) const;

  enum class Loss : uint8_t { kNone, kLost, kCounted };

  ChunkPicker picker_;
  std::vector<std::unique_ptr<SourceInUse>> sources_;
  std::vector<Loss> losses_;  // for each chunk: whether it was lost with a failed source
  size_t turn_ = 0;           // index of the source to try first
  int under_way_ = 0;
  uint32_t refetched_ = 0;
  uint64_t fetched_ = 0;
  uint64_t received_bytes_ = 0;
};

}  // namespace tensorcast
