#include "core/ingest/chunk_picker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

constexpr uint32_t kBits = 64;

// A source is asked for what it gives in this time, besides the chunk that it is sending, so that it has the
// next request before it needs it. With other sources, less than a chunk counts as none: a chunk that
// waits in a source's queue comes a chunk time later than it could from one that is idle, and is passed on
// later.
constexpr absl::Duration kAhead = absl::Milliseconds(10);

// Beside other sources at most one in so many of the chunks that none has, for each of the sources, is read
// from outside at once.
constexpr int kLeftOutside = 8;

// How much of the last chunk's time goes into a source's measured one.
constexpr double kNewest = 0.3;

// A source that gives nothing for so long, or for so many of its usual chunk times, is stalled.
constexpr absl::Duration kMinPatience = absl::Milliseconds(250);
constexpr double kPatienceChunks = 4;
// The limit while no source has given anything, so that nothing is known of what is usual.
constexpr absl::Duration kFirstPatience = absl::Milliseconds(350);

bool Test(const std::vector<uint64_t>& bits, uint32_t bit) {
  return (bits[bit / kBits] >> (bit % kBits) & 1) != 0;
}

// splitmix64; another value for each pair.
uint64_t Mix(uint32_t chunk, uint32_t share) {
  uint64_t mixed = (uint64_t{chunk} << 32 | share) + 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31);
}

}  // namespace

// The account: `levels_` has one bit for each missing chunk, in the level of the number of sources that have
// it (`holders`), so that "rarest first" reads words of bits instead of chunks. Sources with every chunk
// count in no level: they would raise all chunks alike. Every change of a chunk's state or holders goes
// through SetMissing or SetHolders, which keep the levels true.
ChunkPicker::ChunkPicker(uint32_t chunks, uint64_t seed)
    : chunks_(chunks), levels_(kLevels, Bits((chunks + kBits - 1) / kBits)), random_(seed), missing_(chunks) {
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    levels_[0][chunk / kBits] |= uint64_t{1} << (chunk % kBits);
  }
}

ChunkPicker::Bits& ChunkPicker::LevelOf(const Chunk& chunk) {
  return levels_[std::min<uint32_t>(chunk.holders, kLevels - 1)];
}

void ChunkPicker::SetMissing(uint32_t chunk, bool missing) {
  // The bit changes with each call, since a chunk is either missing or not.
  LevelOf(chunks_[chunk])[chunk / kBits] ^= uint64_t{1} << (chunk % kBits);
  missing_ += missing ? 1 : -1;
}

void ChunkPicker::SetHolders(uint32_t chunk, int change) {
  Chunk& changed = chunks_[chunk];
  // A missing chunk moves from the level of its holders to the next.
  const bool missing = changed.state == State::kMissing;
  if (missing) SetMissing(chunk, false);
  changed.holders += change;
  if (missing) SetMissing(chunk, true);
}

int ChunkPicker::AddSource(Source source) {
  CHECK(source.max_fetches > 0 && source.share < source.shares);
  CHECK(source.availability == nullptr || source.availability->chunks() == chunks_.size())
      << "an availability of " << source.availability->chunks() << " chunks for an image of "
      << chunks_.size();
  SourceState state{.source = std::move(source)};
  if (state.source.availability != nullptr) state.has.resize(levels_[0].size());
  if (state.source.shares > 1) RankChunks(state);
  ++in_use_;
  sources_.push_back(std::move(state));
  return static_cast<int>(sources_.size()) - 1;
}

// Each chunk has the shares in an order of its own, the same for all receivers. So where some of the shares
// belong to no receiver, their chunks fall to the others evenly.
void ChunkPicker::RankChunks(SourceState& source) {
  const auto [share, shares] = std::pair(source.source.share, source.source.shares);
  source.ranks.assign(shares, Bits(levels_[0].size()));
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const uint64_t own = Mix(chunk, share);
    uint32_t rank = 0;
    for (uint32_t other = 0; other < shares; ++other) rank += Mix(chunk, other) < own ? 1 : 0;
    source.ranks[rank][chunk / kBits] |= uint64_t{1} << (chunk % kBits);
  }
}

void ChunkPicker::RemoveSource(int source) {
  SourceState& removed = sources_[source];
  CHECK(!removed.removed && removed.asked.empty()) << "source " << source;
  removed.removed = true;
  --in_use_;
  for (uint32_t chunk = 0; !removed.has.empty() && chunk < chunks_.size(); ++chunk) {
    if (Test(removed.has, chunk)) SetHolders(chunk, -1);
  }
  removed.has.clear();
  removed.ranks.clear();
  removed.source.availability = nullptr;
}

// An availability only grows, so one with the same count as before has not changed.
void ChunkPicker::ReadAvailabilities() {
  for (SourceState& source : sources_) {
    if (source.source.availability == nullptr) continue;
    const Availability& availability = *source.source.availability;
    const uint32_t count = availability.count();
    if (count == source.known) continue;
    source.known = count;
    for (uint32_t word = 0; word < source.has.size(); ++word) {
      const uint64_t now = availability.Word(word);
      for (uint64_t fresh = now & ~source.has[word]; fresh != 0; fresh &= fresh - 1) {
        const uint32_t chunk = word * kBits + std::countr_zero(fresh);
        SetHolders(chunk, 1);
        source.left += chunks_[chunk].state == State::kDone ? 0 : 1;
      }
      source.has[word] |= now;
    }
  }
}

bool ChunkPicker::Has(const SourceState& source, uint32_t chunk) const {
  return !source.removed && (source.has.empty() || Test(source.has, chunk));
}

// A stalled source does not count: a chunk gains nothing by moving to it.
bool ChunkPicker::OtherGives(int source, uint32_t chunk) const {
  for (int other = 0; other < static_cast<int>(sources_.size()); ++other) {
    if (other != source && !sources_[other].stalled && Has(sources_[other], chunk)) return true;
  }
  return false;
}

bool ChunkPicker::IsSpent(int source) const {
  const SourceState& state = sources_[source];
  // What was announced since the last look is not in `left` yet.
  return state.source.availability != nullptr && state.left == 0 &&
         state.known == state.source.availability->count();
}

ChunkPicker::Bits ChunkPicker::LeftToOthers(const SourceState& source) const {
  Bits left;
  for (const SourceState& other : sources_) {
    const bool nearer =
        (other.source.at_hand && !source.source.at_hand) || (source.source.outside && !other.source.outside);
    if (!nearer || other.removed || other.stalled) continue;
    left.resize(levels_[0].size());
    for (uint32_t word = 0; word < left.size(); ++word) {
      left[word] |= other.has.empty() ? ~uint64_t{0} : other.has[word];
    }
  }
  return left;
}

// How many requests the source may have in flight. A stalled source gets one: its next chunk shows that it is
// alive (Fetched).
int ChunkPicker::Window(const SourceState& source) const {
  if (source.source.in_order) return source.source.max_fetches;
  if (source.stalled) return 1;
  if (source.source.outside) return WindowOutside(source);
  const double measured =
      source.chunk_time > absl::ZeroDuration() ? absl::FDivDuration(kAhead, source.chunk_time) : 0;
  const double ahead = in_use_ > 1 ? std::floor(measured) : std::max(1.0, std::ceil(measured));
  return static_cast<int>(std::min<double>(1 + ahead, source.source.max_fetches));
}

// A source at hand takes part to the end, since the others are not asked for what it has. So does one
// outside, and nothing is left to it: it is not asked for what others have. The fastest source leaves nothing
// to others, so each chunk that is left is asked of one.
bool ChunkPicker::LeavesTail(const SourceState& source) const {
  if (source.source.at_hand || source.source.outside || source.chunk_time == absl::ZeroDuration()) {
    return false;
  }
  size_t chunks = missing_;
  // Counted are the sources that are faster than this one, are not stalled, and have every chunk that is
  // left.
  double together = 0;  // chunks a second
  for (const SourceState& other : sources_) {
    const bool has_all = other.has.empty() || other.left == chunks_.size() - done_;
    if (other.removed || other.stalled || other.source.outside || !has_all ||
        other.chunk_time == absl::ZeroDuration() || other.chunk_time >= source.chunk_time) {
      continue;
    }
    // What is asked of a faster source already comes before what is left.
    chunks += other.asked.size();
    together += absl::FDivDuration(absl::Seconds(1), other.chunk_time);
  }
  const double next = absl::ToDoubleSeconds(source.chunk_time) * static_cast<double>(source.asked.size() + 1);
  return static_cast<double>(chunks) < together * next;
}

int ChunkPicker::WindowOutside(const SourceState& source) const {
  // It begins with little, since many receivers may begin at once, and grows with each chunk that came.
  const int grown = static_cast<int>(std::min<int64_t>(source.source.max_fetches, 2 + source.fetched));
  if (in_use_ == 1) return grown;
  int held_by_none = 0;
  for (const uint64_t word : levels_[0]) held_by_none += std::popcount(word);
  return std::clamp(held_by_none / (kLeftOutside * in_use_), 1, grown);
}

void ChunkPicker::Skip(uint32_t chunk) {
  CHECK(sources_.empty() && chunks_[chunk].state == State::kMissing) << "chunk " << chunk;
  SetMissing(chunk, false);
  chunks_[chunk].state = State::kDone;
  ++done_;
}

std::optional<ChunkPicker::Taken> ChunkPicker::Take(int source, SteadyTime now) {
  SourceState& from = sources_[source];
  CHECK(!from.removed) << "source " << source;
  if (missing_ == 0 || static_cast<int>(from.asked.size()) >= Window(from)) return std::nullopt;
  ReadAvailabilities();
  if (LeavesTail(from)) return std::nullopt;
  const std::optional<uint32_t> picked = Pick(source);
  if (!picked.has_value()) return std::nullopt;
  Chunk& chunk = chunks_[*picked];
  SetMissing(*picked, false);
  chunk.state = State::kAsked;
  chunk.source = source;
  from.asked.push_back({.chunk = *picked, .since = now});
  const bool again = std::exchange(chunk.put_back, false) && !chunk.again;
  chunk.again |= again;
  return Taken{*picked, again};
}

std::optional<uint32_t> ChunkPicker::Pick(int source) {
  const SourceState& from = sources_[source];
  // One chunk at a time (Window), and only what no other source gives.
  if (from.stalled) {
    for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      if (chunks_[chunk].state == State::kMissing && Has(from, chunk) && !OtherGives(source, chunk)) {
        return chunk;
      }
    }
    return std::nullopt;
  }
  const Bits except = LeftToOthers(from);
  std::optional<uint32_t> lowest;
  for (const Bits& level : levels_) {
    std::optional<uint32_t> picked;
    // Within a level, this receiver's own share of the source comes first.
    for (size_t rank = 0; rank < from.ranks.size() && !picked.has_value(); ++rank) {
      picked = PickOfLevel(from, level, &from.ranks[rank], except);
    }
    if (from.ranks.empty()) picked = PickOfLevel(from, level, nullptr, except);
    if (!picked.has_value()) continue;
    if (!from.source.in_order) return picked;
    // What reads a disk takes the lowest chunk of all levels.
    lowest = std::min(*picked, lowest.value_or(*picked));
  }
  return lowest;
}

std::optional<uint32_t> ChunkPicker::PickOfLevel(const SourceState& source, const Bits& level,
                                                 const Bits* mask, const Bits& except) {
  const auto candidates = [&](uint32_t word) {
    uint64_t bits = except.empty() ? level[word] : level[word] & ~except[word];
    if (!source.has.empty()) bits &= source.has[word];
    return mask == nullptr ? bits : bits & (*mask)[word];
  };
  // The candidates are counted first and the n-th is found in a second pass, so that the choice is even
  // without a list.
  uint64_t count = 0;
  for (uint32_t word = 0; word < level.size(); ++word) count += std::popcount(candidates(word));
  if (count == 0) return std::nullopt;
  uint64_t index = source.source.in_order ? 0 : random_() % count;
  for (uint32_t word = 0;; ++word) {
    uint64_t bits = candidates(word);
    if (const uint64_t here = std::popcount(bits); here <= index) {
      index -= here;
      continue;
    }
    for (; index > 0; --index) bits &= bits - 1;
    return word * kBits + std::countr_zero(bits);
  }
}

void ChunkPicker::Fetched(int source, uint32_t chunk, SteadyTime now) {
  SourceState& from = sources_[source];
  Chunk& fetched = chunks_[chunk];
  CHECK(fetched.state == State::kAsked && fetched.source == source)
      << "chunk " << chunk << ", source " << source;
  const auto asked = std::ranges::find(from.asked, chunk, &Asked::chunk);
  // A request made while the source sent another chunk began when that one was sent.
  const absl::Duration took = now - std::max(asked->since, from.last_fetched);
  from.chunk_time =
      from.chunk_time == absl::ZeroDuration() ? took : took * kNewest + from.chunk_time * (1 - kNewest);
  // Zero stands for "not measured".
  from.chunk_time = std::max(from.chunk_time, absl::Nanoseconds(1));
  from.last_fetched = now;
  ++from.fetched;
  from.stalled = false;
  from.guessed_after = absl::ZeroDuration();
  from.asked.erase(asked);
  fetched.state = State::kFetched;
}

// A fetched chunk can come back as well, when its bytes were wrong; then its request is no longer in `asked`.
void ChunkPicker::PutBack(int source, uint32_t chunk) {
  Chunk& returned = chunks_[chunk];
  CHECK((returned.state == State::kAsked || returned.state == State::kFetched) && returned.source == source)
      << "chunk " << chunk << ", source " << source;
  if (returned.state == State::kAsked) {
    std::vector<Asked>& asked = sources_[source].asked;
    asked.erase(std::ranges::find(asked, chunk, &Asked::chunk));
  }
  returned.state = State::kMissing;
  returned.put_back = true;
  SetMissing(chunk, true);
}

void ChunkPicker::Done(uint32_t chunk) {
  CHECK(chunks_[chunk].state == State::kFetched) << "chunk " << chunk;
  chunks_[chunk].state = State::kDone;
  ++done_;
  for (SourceState& source : sources_) {
    if (!source.has.empty() && Test(source.has, chunk)) --source.left;
  }
}

// The expected time of a source that has given nothing yet comes from the others.
absl::Duration ChunkPicker::UsualChunkTime(const SourceState& source) const {
  absl::Duration usual = source.chunk_time;
  if (usual == absl::ZeroDuration()) {
    for (const SourceState& other : sources_) usual = std::max(usual, other.chunk_time);
  }
  return usual;
}

// A source becomes stalled here. It recovers by the next chunk that it gives (Fetched), or here, when the
// first measurement shows that the guess was too early.
void ChunkPicker::JudgeStall(SourceState& source, SteadyTime now) const {
  const absl::Duration usual = UsualChunkTime(source);
  const bool measured = usual != absl::ZeroDuration();
  const absl::Duration patience = measured ? std::max(kMinPatience, usual * kPatienceChunks) : kFirstPatience;
  // The judgement was made without a measurement. Now there is one, and it decides.
  if (measured && source.guessed_after != absl::ZeroDuration()) {
    source.stalled = source.guessed_after >= patience;
    source.guessed_after = absl::ZeroDuration();
  }
  if (source.stalled || source.asked.empty()) return;
  // Since the oldest request, or the last chunk that came, whichever is later.
  SteadyTime since = SteadyTime::InfiniteFuture();
  for (const Asked& asked : source.asked) since = std::min(since, asked.since);
  since = std::max(since, source.last_fetched);
  if (now < since + patience) return;
  source.stalled = true;
  if (!measured) source.guessed_after = now - since;
}

// All sources are judged before any chunk is taken back: a chunk stays where the other source that has it
// stalls as well.
std::vector<ChunkPicker::Fetch> ChunkPicker::Overdue(SteadyTime now) {
  ReadAvailabilities();
  for (SourceState& source : sources_) JudgeStall(source, now);
  std::vector<Fetch> overdue;
  for (int source = 0; source < static_cast<int>(sources_.size()); ++source) {
    if (!sources_[source].stalled) continue;
    for (Asked& asked : sources_[source].asked) {
      if (asked.taken_back || !OtherGives(source, asked.chunk)) continue;
      asked.taken_back = true;
      overdue.push_back({source, asked.chunk});
    }
  }
  return overdue;
}

}  // namespace tensorcast
