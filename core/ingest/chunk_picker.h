// ChunkPicker decides which chunk an ingest requests next from which of its sources. It keeps the account of
// missing, requested and done chunks for that decision.
//
// Rarest first: the receivers of one image give each other their chunks, so each chunk should leave a source
// with many receivers only about once. From the chunks of a source, the picker takes those that the smallest
// number of other sources of this ingest have, ties at random. Among chunks that no other source has, it
// first takes this receiver's share of the source; other receivers of the source have other shares.
//
// Sources in memory of this host (`at_hand`) keep the chunks that they have: other sources are asked only for
// the rest.
//
// A source outside the cluster (`outside`) should be read once by all receivers together. It is asked only
// for chunks that no other source has, this receiver's share first. Such a chunk may already be on its way to
// another receiver, so the fewer such chunks are left, the fewer are requested at once.
//
// Any other source gets as many requests at once as keep it busy at its measured rate, and no more: a chunk
// that waits in a source's queue cannot come from another source. A source that has given nothing for much
// longer than usual counts as stalled. The picker takes its chunks back if another source has them; until it
// gives a chunk, it is asked only for chunks that no other source has. Before any source has given a chunk, a
// source counts as stalled after a fixed time. The first chunk of any source gives a better limit, by which
// the picker then judges again.
//
// At the end of the image slow sources stop: a source takes no chunk if faster sources have every chunk that
// is left and would, at their measured rates, give all of them before this source gives its next.
//
// Each chunk is requested from one source at a time: Take, then Fetched and Done, or PutBack at any point
// after Take.
//
// Pure: no clock, no threads; the same calls give the same answers for the same seed. It reads
// availabilities, which other threads may write meanwhile. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"

namespace tensorcast {

class ChunkPicker {
 public:
  struct Source {
    // The chunks that the source has, over the same chunk count as the picker's; null: every chunk.
    std::shared_ptr<const Availability> availability;
    int max_fetches = 1;    // more requests at once gain nothing
    bool in_order = false;  // reads a disk: the lowest chunk first, and no limit by measured rates
    // In memory of this host: while it gives chunks, other kinds of sources are not asked for these.
    bool at_hand = false;
    bool outside = false;  // outside the cluster
    // This receiver's number among the receivers of the source: `share` is below `shares`, which is at most
    // kMaxShares. 0 of 1: not known.
    uint32_t share = 0;
    uint32_t shares = 1;
  };
  struct Taken {
    uint32_t chunk = 0;
    bool again = false;  // true when the chunk is taken for the first time after it was put back
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  struct Fetch {
    int source = 0;
    uint32_t chunk = 0;
    friend bool operator==(const Fetch&, const Fetch&) = default;
  };

  static constexpr uint32_t kMaxShares = 64;
  // While requests are in flight, call Overdue at least this often. When Take gives no chunk, it may give one
  // after this time.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

  ChunkPicker(uint32_t chunks, uint64_t seed);

  // Returns the index of the source. Indices are not used again.
  int AddSource(Source source);
  // REQUIRES: no request to the source is in flight (chunks that it gave may still be verified).
  void RemoveSource(int source);

  // Requests this chunk from no source: it is present already, or not wanted. REQUIRES: the chunk is missing
  // and no source was added yet.
  void Skip(uint32_t chunk);

  // The chunk to request from this source next; nullopt: none for now. Call it again after any other call,
  // when an availability grew, and after kLookEvery.
  std::optional<Taken> Take(int source, SteadyTime now);
  // The chunk's bytes arrived: the source's window has room again.
  // REQUIRES: the chunk is requested from this source.
  void Fetched(int source, uint32_t chunk, SteadyTime now);
  // The chunk is missing again: its fetch failed, or its bytes were wrong.
  // REQUIRES: the chunk is requested from this source, or was fetched and is not done.
  void PutBack(int source, uint32_t chunk);
  // The chunk was verified and placed. REQUIRES: it was fetched.
  void Done(uint32_t chunk);

  // Fetches to cancel because another source would give the chunk sooner; each is returned once. The caller
  // ends each with PutBack, or with Fetched if the bytes came after all.
  std::vector<Fetch> Overdue(SteadyTime now);
  // Whether the source counted as stalled at the last Overdue and has given no chunk since.
  bool stalled(int source) const { return sources_[source].stalled; }
  // Whether all chunks that the source has announced are done, and these are not all chunks of the image.
  bool IsSpent(int source) const;

  uint32_t missing() const { return missing_; }  // chunks that are not requested, fetched or done
  bool all_done() const { return done_ == chunks_.size(); }

 private:
  using Bits = std::vector<uint64_t>;
  enum class State : uint8_t { kMissing, kAsked, kFetched, kDone };
  struct Chunk {
    State state = State::kMissing;
    bool put_back = false;  // since it was taken
    bool again = false;     // told once that it is taken again
    uint16_t holders = 0;   // sources that have it, those that have every chunk not counted
    int source = -1;        // that it is asked of
  };
  struct Asked {
    uint32_t chunk = 0;
    SteadyTime since;
    bool taken_back = false;
  };
  struct SourceState {
    Source source;
    bool removed = false;
    bool stalled = false;
    // It stalled before anything was measured, after it had given nothing for so long; zero: it did not.
    absl::Duration guessed_after = absl::ZeroDuration();
    uint32_t fetched = 0;     // chunks
    uint32_t known = 0;       // the availability's count when `has` was read
    Bits has;                 // empty where it has every chunk
    uint32_t left = 0;        // of those: not done
    std::vector<Bits> ranks;  // where there are shares: the chunks of this share first; then those that
                              // would be if their share had no receiver; and so on
    std::vector<Asked> asked;
    SteadyTime last_fetched = SteadyTime::InfinitePast();
    absl::Duration chunk_time = absl::ZeroDuration();  // measured; zero: not yet
  };

  // Chunks that no source is asked for, by how many have them; the last level takes all that more have.
  static constexpr uint32_t kLevels = 8;
  Bits& LevelOf(const Chunk& chunk);
  void SetHolders(uint32_t chunk, int change);
  void SetMissing(uint32_t chunk, bool missing);
  void ReadAvailabilities();
  bool Has(const SourceState& source, uint32_t chunk) const;
  bool OtherGives(int source, uint32_t chunk) const;
  // The chunks that this source is not to be asked for: sources at hand give them.
  Bits LeftToOthers(const SourceState& source) const;
  // Whether faster sources give all that is missing before this one would give one more chunk.
  bool LeavesTail(const SourceState& source) const;
  int Window(const SourceState& source) const;
  int WindowOutside(const SourceState& source) const;
  void RankChunks(SourceState& source);
  // The time of a chunk of this source, or the longest of the others; zero: nothing was measured yet.
  absl::Duration UsualChunkTime(const SourceState& source) const;
  void JudgeStall(SourceState& source, SteadyTime now) const;
  std::optional<uint32_t> Pick(int source);
  // Of the chunks in the mask, where there is one, without those in `except`, where that is not empty.
  std::optional<uint32_t> PickOfLevel(const SourceState& source, const Bits& level, const Bits* mask,
                                      const Bits& except);

  std::vector<Chunk> chunks_;
  std::vector<SourceState> sources_;
  std::vector<Bits> levels_;
  std::mt19937_64 random_;
  uint32_t missing_;
  uint32_t done_ = 0;
  int in_use_ = 0;  // sources
};

}  // namespace tensorcast
