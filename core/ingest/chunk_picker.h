// ChunkPicker decides which chunk an ingest requests next from which source. It tracks which chunks are
// missing, requested, fetched and done.
//
// Rarest first (as in BitTorrent). Of the chunks that a source has, the picker takes the chunk that the
// smallest number of the ingest's other sources have. In a tie, the picker prefers the chunks of this
// receiver's share, and then takes a random chunk. Each receiver of a source has a share of the image's
// chunks. The shares differ, so that the receivers can exchange chunks.
//
// Sources in memory of this host (`at_hand`). Other sources are asked only for chunks that no source at hand
// has. This rule and the next rule ignore the chunks of a stalled source.
//
// Sources outside the cluster (`outside`). All receivers together should read each chunk from there once.
// Such a source is asked only for chunks that no cluster source has, this receiver's share first. Another
// receiver may be fetching such a chunk. So the picker requests fewer of them at once when fewer are left.
//
// Windows. A source in the cluster gets only as many requests at once as keep it busy at its measured rate.
//
// Stalls. A source that has delivered nothing for much longer than usual is stalled. The picker takes a chunk
// back from a stalled source if another source has the chunk. Until the stalled source delivers a chunk, the
// picker asks it only for chunks that no other source has. Before any source has delivered a chunk, a source
// stalls after a fixed time. The first delivered chunk gives a better limit for all sources.
//
// End of the image. A slow source gets no request if faster sources have every missing chunk, and would
// deliver these chunks before the slow source delivers its next chunk. The measured rates decide this.
//
// Each chunk is requested from one source at a time. The calls for a chunk are Take, Fetched and Done.
// PutBack may replace Fetched, or may replace Done.
//
// No clock and no threads: the same calls give the same results for the same seed. The picker reads
// availabilities, which other threads may write at the same time. Thread-compatible.
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
    // The chunks that the source has; null: every chunk. Must have as many chunks as the picker.
    std::shared_ptr<const Availability> availability;
    int max_fetches = 1;    // max requests in flight; more requests do not increase the source's rate
    bool in_order = false;  // for a disk: takes the lowest chunk first, without a window
    bool at_hand = false;   // in memory of this host
    bool outside = false;   // outside the cluster
    // This receiver's number among the `shares` receivers of the source, counted from 0. `shares` is at most
    // kMaxShares. If the receivers are not known, `share` is 0 and `shares` is 1.
    uint32_t share = 0;
    uint32_t shares = 1;
  };
  struct Taken {
    uint32_t chunk = 0;
    bool again = false;  // true at the first Take after the first PutBack of the chunk
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  struct Fetch {
    int source = 0;
    uint32_t chunk = 0;
    friend bool operator==(const Fetch&, const Fetch&) = default;
  };

  static constexpr uint32_t kMaxShares = 64;
  // While requests are in flight, call Overdue at least this often. If Take returned nullopt, call Take again
  // after this time.
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

  ChunkPicker(uint32_t chunks, uint64_t seed);

  // Returns the index of the source. The index of a removed source is not used again.
  int AddSource(Source source);
  // REQUIRES: no request to the source is in flight (chunks that it delivered may still be in verification).
  void RemoveSource(int source);

  // Excludes a chunk that is already present or not wanted. REQUIRES: the chunk is missing, and no source was
  // added yet.
  void Skip(uint32_t chunk);

  // The chunk to request from this source next; nullopt if there is none now. The result can change after any
  // other call, after an availability grew, and after kLookEvery.
  std::optional<Taken> Take(int source, SteadyTime now);
  // The chunk's bytes arrived: the source's window has room again.
  // REQUIRES: the chunk is requested from this source.
  void Fetched(int source, uint32_t chunk, SteadyTime now);
  // The chunk is missing again: its fetch failed, or its bytes were wrong.
  // REQUIRES: the chunk is requested from this source, or was fetched and is not done.
  void PutBack(int source, uint32_t chunk);
  // The chunk was verified and placed. REQUIRES: it was fetched.
  void Done(uint32_t chunk);

  // Fetches to cancel because another source would deliver the chunk sooner. Each fetch is returned once. The
  // caller ends each fetch with PutBack, or with Fetched if the bytes arrived before the cancellation.
  std::vector<Fetch> Overdue(SteadyTime now);
  // Whether the source counted as stalled at the last Overdue and has delivered no chunk since.
  bool stalled(int source) const { return sources_[source].stalled; }
  // Whether all chunks that the source has announced are done. False for a source without an availability.
  bool IsSpent(int source) const;

  uint32_t missing() const { return missing_; }  // chunks that are not requested, fetched or done
  bool all_done() const { return done_ == chunks_.size(); }

 private:
  using Bits = std::vector<uint64_t>;
  enum class State : uint8_t { kMissing, kAsked, kFetched, kDone };
  struct Chunk {
    State state = State::kMissing;
    bool put_back = false;  // it was put back and not taken since
    bool again = false;     // Taken::again was returned for it
    uint16_t holders = 0;   // the number of sources with an availability that have it
    int source = -1;        // the source of the last request
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
    // If the source was found stalled before any source was measured: how long it had then delivered nothing.
    // Zero after a measurement, and if the source was not found stalled.
    absl::Duration guessed_after = absl::ZeroDuration();
    uint32_t fetched = 0;  // chunks
    uint32_t known = 0;    // the availability's count when `has` was read
    Bits has;              // empty for a source with every chunk
    uint32_t left = 0;     // the chunks of `has` that are not done
    // If there are shares: ranks[0] has the chunks of this receiver's share. ranks[i] has the chunks that
    // would fall to this receiver if i other shares had no receiver.
    std::vector<Bits> ranks;
    std::vector<Asked> asked;
    SteadyTime last_fetched = SteadyTime::InfinitePast();
    absl::Duration chunk_time = absl::ZeroDuration();  // measured; zero: nothing measured
  };

  // levels_[n] has the missing chunks with n holders; the last level also has those with more.
  static constexpr uint32_t kLevels = 8;
  Bits& LevelOf(const Chunk& chunk);
  void SetHolders(uint32_t chunk, int change);
  void SetMissing(uint32_t chunk, bool missing);
  void ReadAvailabilities();
  bool Has(const SourceState& source, uint32_t chunk) const;
  bool OtherGives(int source, uint32_t chunk) const;
  // The chunks for which this source is not asked, because nearer sources have them.
  Bits LeftToOthers(const SourceState& source) const;
  // Whether faster sources would deliver all missing chunks before this source delivers one more.
  bool LeavesTail(const SourceState& source) const;
  int Window(const SourceState& source) const;
  int WindowOutside(const SourceState& source) const;
  void RankChunks(SourceState& source);
  // The measured time of a chunk of this source. If this source was not measured, the longest measured time
  // of the other sources; zero if nothing was measured.
  absl::Duration UsualChunkTime(const SourceState& source) const;
  void JudgeStall(SourceState& source, SteadyTime now) const;
  std::optional<uint32_t> Pick(int source);
  // Picks from the chunks of `level` that the source has. `mask`, if not null, selects some of them;
  // `except`, if not empty, excludes chunks.
  std::optional<uint32_t> PickOfLevel(const SourceState& source, const Bits& level, const Bits* mask,
                                      const Bits& except);

  std::vector<Chunk> chunks_;
  std::vector<SourceState> sources_;
  std::vector<Bits> levels_;
  std::mt19937_64 random_;
  uint32_t missing_;
  uint32_t done_ = 0;
  int in_use_ = 0;  // the number of sources that were not removed
};

}  // namespace tensorcast
