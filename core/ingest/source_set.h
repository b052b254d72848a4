// The sources that an ingest has in use, and the chunks that are under way from each: an account without
// threads, which the pipeline keeps under its mutex.
//
// A source joins by Add. It is given up by GiveUp, and asked for nothing from then on; when the last of its
// fetches has been removed it can be taken out (TakeRetired) and destroyed. So can one that will not get more
// chunks and has all of its own done: what it holds is free before the ingest ends. A chunk is taken from one
// source (Take), and is done or missing again (PutBack) before its fetch is removed.
//
// Thread-compatible. What is to be cancelled or destroyed is given to the caller, which does that without the
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
  // Of an image of so many chunks, of which `wanted` are to be fetched, ascending; not set: all. `seed` as
  // the picker's.
  SourceSet(uint32_t chunks, const std::optional<std::vector<uint32_t>>& wanted, uint64_t seed);
  SourceSet(const SourceSet&) = delete;
  SourceSet& operator=(const SourceSet&) = delete;

  // Joins with `source`, of which the set fills in only its own fields.
  void Add(std::unique_ptr<SourceInUse> source);
  // A source that was given up, or has no more to give (then it has no failure), and has nothing under way;
  // null: none. Its failure says all that became of it.
  std::unique_ptr<SourceInUse> TakeRetired();
  bool HasRetired() const;
  // The sources that are left; for the end.
  std::vector<std::unique_ptr<SourceInUse>> TakeAll();
  // Gives the fetches to cancel: all that are under way, where it was not given up before.
  [[nodiscard]] std::vector<Cancellation> GiveUp(SourceInUse& source, absl::Status why, bool corrupt);

  // The next chunk to fetch, of whichever source; null: none for now.
  FetchPtr Take(SteadyTime now);
  void Fetched(ChunkFetch& fetch, SteadyTime now);  // its bytes are here
  void Done(ChunkFetch& fetch);                     // and in their place
  void PutBack(ChunkFetch& fetch);                  // the chunk is missing again...
  void CountLost(ChunkFetch& fetch);                // ...by the fault of its source, which was given up
  void Remove(ChunkFetch& fetch);                   // REQUIRES: done or put back
  // Fetches to cancel because another source gives their chunk sooner.
  [[nodiscard]] std::vector<Cancellation> TakeBackOverdue(SteadyTime now);
  std::vector<Cancellation> UnderWay() const;
  // Marks those in use that were overtaken as given up, where another source is left. For the end, when
  // nothing is under way.
  void GiveUpOvertaken();

  // Includes those that are being given up.
  const std::vector<std::unique_ptr<SourceInUse>>& sources() const { return sources_; }
  int in_use() const;
  std::string NamesInUse() const;  // for messages
  SourceInUse* AnyInUse() const;   // null: none
  int under_way() const { return under_way_; }
  uint32_t missing() const { return picker_.missing(); }
  bool all_done() const { return picker_.all_done(); }
  uint32_t refetched() const { return refetched_; }
  uint64_t fetched() const { return fetched_; }                // chunks, from all sources, with repetition
  uint64_t received_bytes() const { return received_bytes_; }  // over the network, with repetition

 private:
  bool IsRetired(const SourceInUse& source) const;

  enum class Loss : uint8_t { kNone, kLost, kCounted };

  ChunkPicker picker_;
  std::vector<std::unique_ptr<SourceInUse>> sources_;
  std::vector<Loss> losses_;  // of each chunk: whether a source that failed had it
  size_t turn_ = 0;           // of the sources: which is asked first
  int under_way_ = 0;
  uint32_t refetched_ = 0;
  uint64_t fetched_ = 0;
  uint64_t received_bytes_ = 0;
};

}  // namespace tensorcast
