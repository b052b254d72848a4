// Which chunk to ask of which source next, where an ingest has several: a policy, and the account of what is
// missing, under way and done that it decides by.
//
// The receivers of one image give each other what they have, so each chunk should leave a source that many
// ask only about once. Therefore the rarest first: of the chunks that a source has, the chunks with the min
// number of other sources in this ingest, ties at random; and, of those that no other has, first the ones of
// this receiver's share of the source, which differs from its other receivers'.
//
// What is in memory of this host need not come from elsewhere: sources there (`at_hand`) are left the chunks
// that they have, the other sources are asked for the rest.
//
// What is read from outside of the cluster (`outside`) is to be read once by all receivers together: such a
// source is asked only for what no other source has, its own share first. What no source has may be under way
// to another receiver, so the fewer such chunks there are the fewer are asked for at once.
//
// Any other source is asked for as many chunks at once as keep it busy at the rate that was measured, and no
// more: a chunk that waits in a source's queue cannot be had from another. A source that has given nothing
// for much longer than it usually takes counts as stalled: its chunks are taken back where another source has
// them, and until it gives one it is asked only for what no other source has. While no source has given a
// chunk, a source counts as stalled after a fixed time; the first chunk that any source gives says how long
// that should have been, and corrects the judgement.
//
// All sources give chunks together until the last ones: a source takes none where faster sources have every
// chunk that is left and would, at their measured rates, give all of them before this one gives its next.
//
// Each chunk is asked of one source at a time: Take, then Fetched and Done, or PutBack at any point of that.
//
// Pure: no clock, no threads; the same calls give the same answers for the same seed. It reads
// availabilities, which others may write meanwhile. Thread-compatible.
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
    // What it has; null: every chunk. Of as many chunks as the picker.
    std::shared_ptr<const Availability> availability;
    int max_fetches = 1;    // more at once gain nothing
    bool in_order = false;  // the lowest chunk first, and no windows: what reads a disk
    // In memory of this host: while it gives, no other kind of source is asked for what it has.
    bool at_hand = false;
    bool outside = false;  // of the cluster
    // Which of the receivers that the source serves this one is: `share` of at most `shares`, kMaxShares or
    // fewer. 0 of 1: not known.
    uint32_t share = 0;
    uint32_t shares = 1;
  };
  struct Taken {
    uint32_t chunk = 0;
    bool again = false;  // the first time that it is taken after it was put back
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  struct Fetch {
    int source = 0;
    uint32_t chunk = 0;
    friend bool operator==(const Fetch&, const Fetch&) = default;
  };

  static constexpr uint32_t kMaxShares = 64;
  // Overdue is asked at least so often while anything is under way; what Take does not give now it may give
  // after the same time.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

  ChunkPicker(uint32_t chunks, uint64_t seed);

  // Its index from now on. Indices are not used again.
  int AddSource(Source source);
  // REQUIRES: nothing that was asked of it is under way (chunks that it gave may still be verified).
  void RemoveSource(int source);

  // No source is to be asked for it: it is there, or not wanted. REQUIRES: it is missing, without a source
  // yet.
  void Skip(uint32_t chunk);

  // The chunk to ask of this source next; nullopt: none for now. Worth asking again after any other call,
  // when an availability grew, and after kLookEvery.
  std::optional<Taken> Take(int source, SteadyTime now);
  // Its bytes arrived: there is room in the source's window.
  // REQUIRES: the chunk is under way from this source.
  void Fetched(int source, uint32_t chunk, SteadyTime now);
  // It is missing again: its fetch ended without it, or it was wrong.
  // REQUIRES: the chunk is under way from this source, or was fetched and is not done.
  void PutBack(int source, uint32_t chunk);
  // Verified and in its place. REQUIRES: it was fetched.
  void Done(uint32_t chunk);

  // Fetches to cancel, each told once, because another source would give the chunk sooner. They end with
  // PutBack, or with Fetched when the bytes came after all.
  std::vector<Fetch> Overdue(SteadyTime now);
  // As of the last Overdue, and it has given no chunk since.
  bool stalled(int source) const { return sources_[source].stalled; }
  // All that it has announced, which is not every chunk, is done.
  bool IsSpent(int source) const;

  uint32_t missing() const { return missing_; }  // neither under way, nor fetched, nor done
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
