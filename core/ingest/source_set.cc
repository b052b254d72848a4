#include "core/ingest/source_set.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast {

SourceSet::SourceSet(uint32_t chunks, const std::optional<std::vector<uint32_t>>& wanted, uint64_t seed)
    : picker_(chunks, seed), losses_(chunks, Loss::kNone) {
  if (!wanted.has_value()) return;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    if (!std::ranges::binary_search(*wanted, chunk)) picker_.Skip(chunk);
  }
}

void SourceSet::Add(std::unique_ptr<SourceInUse> source) {
  const SourceInfo& info = source->source->info();
  // What another node says; where it makes no sense the source gives its chunks in any order.
  const bool knows_share = info.share < info.shares && info.shares <= ChunkPicker::kMaxShares;
  // A disk is read best in order, and what is near by is fast enough in any.
  source->index = picker_.AddSource({.availability = source->availability,
                                     .max_fetches = source->max_fetches,
                                     .in_order = info.type != SourceType::kRemote && !info.outside,
                                     .at_hand = info.type == SourceType::kLocal,
                                     .outside = info.outside,
                                     .share = knows_share ? info.share : 0,
                                     .shares = knows_share ? info.shares : 1});
  sources_.push_back(std::move(source));
}

bool SourceSet::IsRetired(const SourceInUse& source) const {
  // Spent: nothing will be added to what it has, and all of that is done.
  const bool spent = source.end_seen && picker_.IsSpent(source.index);
  return (spent || !source.in_use()) && source.under_way.empty();
}

bool SourceSet::HasRetired() const {
  return std::ranges::any_of(sources_, [this](const auto& source) { return IsRetired(*source); });
}

std::unique_ptr<SourceInUse> SourceSet::TakeRetired() {
  const auto retired =
      std::ranges::find_if(sources_, [this](const auto& source) { return IsRetired(*source); });
  if (retired == sources_.end()) return nullptr;
  std::unique_ptr<SourceInUse> source = std::move(*retired);
  // `turn_` may point past the end now; Take counts modulo the size.
  sources_.erase(retired);
  picker_.RemoveSource(source->index);
  if (!source->in_use()) source->failure->delivered = source->delivered;
  return source;
}

std::vector<std::unique_ptr<SourceInUse>> SourceSet::TakeAll() { return std::exchange(sources_, {}); }

std::vector<Cancellation> SourceSet::GiveUp(SourceInUse& source, absl::Status why, bool corrupt) {
  std::vector<Cancellation> fetches;
  if (source.in_use()) {
    source.failure = SourceFailure{source.source->info(), std::move(why), corrupt};
    for (const FetchPtr& fetch : source.under_way) fetches.push_back(fetch->cancellation);
  } else if (corrupt && !source.failure->corrupt) {
    // Wrong bytes are worth more to report than that the source also broke off.
    source.failure->status = std::move(why);
    source.failure->corrupt = true;
  }
  return fetches;
}

FetchPtr SourceSet::Take(SteadyTime now) {
  // In turn, so that the first source does not get every chunk.
  for (size_t i = 0; i < sources_.size(); ++i) {
    SourceInUse& source = *sources_[(turn_ + i) % sources_.size()];
    if (!source.in_use()) continue;
    const std::optional<ChunkPicker::Taken> taken = picker_.Take(source.index, now);
    if (!taken.has_value()) continue;
    turn_ = (turn_ + i + 1) % sources_.size();
    auto fetch = std::make_shared<ChunkFetch>();
    fetch->source = &source;
    fetch->request.chunk = taken->chunk;
    source.under_way.push_back(fetch);
    ++under_way_;
    // A chunk that a failed source was asked for is fetched again: counted once.
    if (Loss& loss = losses_[taken->chunk]; loss == Loss::kLost) {
      loss = Loss::kCounted;
      ++refetched_;
    }
    return fetch;
  }
  return nullptr;
}

void SourceSet::Fetched(ChunkFetch& fetch, SteadyTime now) {
  picker_.Fetched(fetch.source->index, fetch.request.chunk, now);
  // It gave a chunk, so what it refused or was late with before counts no more.
  fetch.source->refusals = 0;
  fetch.source->overtaken = false;
  ++fetched_;
  const SourceInfo& info = fetch.source->source->info();
  if (info.type == SourceType::kRemote || info.outside) received_bytes_ += fetch.request.range.bytes;
}

void SourceSet::Done(ChunkFetch& fetch) {
  picker_.Done(fetch.request.chunk);
  ++fetch.source->delivered;
}

void SourceSet::PutBack(ChunkFetch& fetch) { picker_.PutBack(fetch.source->index, fetch.request.chunk); }

void SourceSet::CountLost(ChunkFetch& fetch) {
  ++fetch.source->failure->chunks;
  Loss& loss = losses_[fetch.request.chunk];
  if (loss == Loss::kNone) loss = Loss::kLost;
}

void SourceSet::Remove(ChunkFetch& fetch) {
  std::erase_if(fetch.source->under_way, [&fetch](const FetchPtr& other) { return other.get() == &fetch; });
  --under_way_;
}

std::vector<Cancellation> SourceSet::TakeBackOverdue(SteadyTime now) {
  std::vector<Cancellation> fetches;
  for (const ChunkPicker::Fetch& overdue : picker_.Overdue(now)) {
    const auto source = std::ranges::find(sources_, overdue.source, &SourceInUse::index);
    CHECK(source != sources_.end()) << "source " << overdue.source;
    const auto fetch = std::ranges::find((*source)->under_way, overdue.chunk,
                                         [](const FetchPtr& other) { return other->request.chunk; });
    CHECK(fetch != (*source)->under_way.end()) << "chunk " << overdue.chunk;
    // The fetch stays under way until its thread has seen the cancellation: until then bytes may arrive in
    // its memory.
    (*fetch)->taken_back = true;
    // One that waits for a buffer waits for the destination.
    (*source)->overtaken |= (*fetch)->acquired;
    fetches.push_back((*fetch)->cancellation);
  }
  return fetches;
}

void SourceSet::GiveUpOvertaken() {
  std::vector<SourceInUse*> overtaken;
  std::vector<std::string> others;
  for (const std::unique_ptr<SourceInUse>& source : sources_) {
    if (!source->in_use()) continue;
    if (source->overtaken) {
      overtaken.push_back(source.get());
    } else {
      others.push_back(source->source->info().name);
    }
  }
  // Where no other source is left, none was sooner.
  if (others.empty()) return;
  for (SourceInUse* source : overtaken) {
    source->failure =
        SourceFailure{.source = source->source->info(),
                      .status = absl::DeadlineExceededError(absl::StrCat(
                          "the source was overtaken: other sources (", absl::StrJoin(others, ", "),
                          ") delivered the requested chunks sooner; no action is needed")),
                      .delivered = source->delivered};
  }
}

std::vector<Cancellation> SourceSet::UnderWay() const {
  std::vector<Cancellation> fetches;
  for (const std::unique_ptr<SourceInUse>& source : sources_) {
    for (const FetchPtr& fetch : source->under_way) fetches.push_back(fetch->cancellation);
  }
  return fetches;
}

int SourceSet::in_use() const {
  return static_cast<int>(
      std::ranges::count_if(sources_, [](const auto& source) { return source->in_use(); }));
}

std::string SourceSet::NamesInUse() const {
  std::vector<std::string> names;
  for (const std::unique_ptr<SourceInUse>& source : sources_) {
    if (source->in_use()) names.push_back(source->source->info().name);
  }
  return absl::StrJoin(names, ", ");
}

SourceInUse* SourceSet::AnyInUse() const {
  const auto any = std::ranges::find_if(sources_, [](const auto& source) { return source->in_use(); });
  return any == sources_.end() ? nullptr : any->get();
}

}  // namespace tensorcast
