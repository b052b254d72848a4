// The sources that an ingest has in use, and the chunks that are under way from each: an account without
// threads, which the pipeline keeps under its mutex.
//
// A source joins by Add. It is given up by GiveUp, and asked for nothing from then on; when the last of its
// fetches has been removed it can be taken out (TakeRetired) and destroyed. A chunk is taken from one source
// (Take), and is done or missing again (PutBack) before its fetch is removed.
//
// Thread-compatible. What is to be cancelled or destroyed is given to the caller, which does that without the
// pipeline's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/ingest/chunk_picker.h"
#include "core/ingest/destination.h"
#include "core/ingest/progress.h"
#include "core/replica/availability.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct SourceInUse;

// How chunks come to a GPU without the host's memory, to be digested in their place.
enum class DirectPath : uint8_t {
  kNone,
  kCopied,   // from memory of a GPU that this process reaches
  kWritten,  // by the source, from elsewhere
};

// One chunk from when it is taken to its end.
struct ChunkFetch {
  SourceInUse* source = nullptr;  // outlives the fetch
  Cancellation cancellation;      // of this fetch alone
  ChunkRequest request;
  // Written by one thread at a time, as the chunk is handed on.
  RequestContext context;  // as it was when the chunk was asked for
  // It has its buffer, so that what it still lacks is its source's. Read by others under the mutex.
  std::atomic<bool> acquired = false;
  ChunkBuffer buffer;
  std::vector<ConstHostSpan> bytes;  // where they are once they are fetched
  SteadyTime start;
  SteadyTime placing_since;
  AwaitPlaced await_placed;      // null: there is nothing to wait for
  AwaitDigested await_digested;  // of a direct one that is in its place, or on the way there
  absl::StatusOr<std::optional<ChunkDigests>> digests;
  DirectPath direct = DirectPath::kNone;
  bool compared = true;  // with the manifest, of a known artifact
  // Under the pipeline's mutex.
  bool taken_back = false;      // because another source gives it sooner
  bool completed_once = false;  // of a source that does not block: it has started the fetch, or told its end
};
using FetchPtr = std::shared_ptr<ChunkFetch>;

struct SourceInUse {
  std::unique_ptr<ChunkSource> source;
  std::shared_ptr<const Availability> availability;  // null: it has everything
  Availability::Watch watch;                         // ends before the availability
  std::shared_ptr<StageClock> clock;                 // read by others while it runs
  int max_fetches = 1;
  bool blocks = true;     // a fetch takes a slot
  bool end_seen = false;  // of the availability
  DirectPath direct = DirectPath::kNone;
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

class SourceSet {
 public:
  // Of an image of so many chunks, of which `wanted` are to be fetched, ascending; not set: all. `seed` as
  // the picker's.
  SourceSet(uint32_t chunks, const std::optional<std::vector<uint32_t>>& wanted, uint64_t seed);
  SourceSet(const SourceSet&) = delete;
  SourceSet& operator=(const SourceSet&) = delete;

  // Joins with `source`, of which the set fills in only its own fields.
  void Add(std::unique_ptr<SourceInUse> source);
  // A source that was given up and has nothing under way; null: none. Its failure says all that became of it.
  std::unique_ptr<SourceInUse> TakeRetired();
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
  uint64_t fetched() const { return fetched_; }  // chunks, from all sources, with repetition

 private:
  enum class Loss : uint8_t { kNone, kLost, kCounted };

  ChunkPicker picker_;
  std::vector<std::unique_ptr<SourceInUse>> sources_;
  std::vector<Loss> losses_;  // of each chunk: whether a source that failed had it
  size_t turn_ = 0;           // of the sources: which is asked first
  int under_way_ = 0;
  uint32_t refetched_ = 0;
  uint64_t fetched_ = 0;
};

}  // namespace tensorcast
