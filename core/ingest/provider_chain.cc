#include "core/ingest/provider_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {

void ProviderChain::ObserveWaits(const WaitObserver& observer) {
  for (const Link& link : links_) link.provider->ObserveWaits(observer);
  if (others_ != nullptr) others_->ObserveWaits(observer);
}

void ProviderChain::NoteFills(const std::string& replica_id) {
  if (others_ != nullptr) others_->NoteFills(replica_id);
}

void ProviderChain::NoteReceived(uint64_t bytes) {
  if (others_ != nullptr) others_->NoteReceived(bytes);
}

// A link stays the current one (`asked_`) after it gave sources. With the next question it is passed if they
// have only some chunks or if their time alone is over, and it is asked again if they have all ended. A link
// that was passed is not asked again, unless there is no other provider at all.
absl::StatusOr<MoreSources> ProviderChain::Next(const RequestContext& context,
                                                std::span<const SourceFailure> ended, bool needed) {
  const std::vector<SourceFailure> of_others = NoteEnded(ended);
  for (; asked_ < links_.size(); ++asked_) {
    Link& link = links_[asked_];
    const SteadyTime now = SteadyNow();
    MoreSources more;
    if (!link.in_use.empty()) {
      // Beside sources with some of the chunks, or after their time alone, the next provider is asked.
      if (!link.whole || now >= link.alone_until) continue;
      more.look_again = link.alone_until - now;
      return more;
    }
    NodeProvider::Given given = link.provider->Next(context);
    if (given.sources.empty()) continue;
    for (const auto& source : given.sources) link.in_use.insert(source->info().replica_id);
    link.whole = given.whole;
    // While the chunks of a part are copied, the next provider looks for other sources.
    more.look_again = given.whole ? given.alone : absl::ZeroDuration();
    link.alone_until = now + more.look_again;
    more.sources = std::move(given.sources);
    return more;
  }
  if (others_ == nullptr) {
    asked_ = 0;  // no later provider was asked, so this node's may be again
    return absl::NotFoundError(absl::StrCat(
        "find a source of ", subject_,
        ": this node has no other replica of the artifact, and no other source was given; put the artifact "
        "again"));
  }
  others_in_use_ -= static_cast<int>(of_others.size());
  // What this node does not have is needed, though a source of it is in use.
  absl::StatusOr<MoreSources> others =
      others_->Next(context, of_others, needed || (others_in_use_ == 0 && !IsWholeHere()));
  if (others.ok()) others_in_use_ += static_cast<int>(others->sources.size());
  return others;
}

bool ProviderChain::IsWholeHere() const {
  return std::ranges::any_of(links_, [](const Link& link) { return link.whole && !link.in_use.empty(); });
}

std::vector<SourceFailure> ProviderChain::NoteEnded(std::span<const SourceFailure> ended) {
  std::vector<SourceFailure> of_others;
  for (const SourceFailure& failure : ended) {
    const auto link = std::ranges::find_if(
        links_, [&](const Link& other) { return other.in_use.contains(failure.source.replica_id); });
    if (link == links_.end()) {
      of_others.push_back(failure);
    } else {
      link->in_use.erase(failure.source.replica_id);
      // Its other sources may not have every chunk together.
      link->whole = false;
      link->provider->Ended(failure);
    }
  }
  return of_others;
}

std::vector<SourceFailure> ProviderChain::TakeUnopened() {
  std::vector<SourceFailure> unopened;
  const auto take = [&unopened](std::vector<SourceFailure> some) {
    std::ranges::move(some, std::back_inserter(unopened));
  };
  for (const Link& link : links_) take(link.provider->TakeUnopened());
  if (others_ != nullptr) take(others_->TakeUnopened());
  return unopened;
}

void ProviderChain::Finished(const absl::Status& status, std::span<const SourceFailure> ended) {
  const std::vector<SourceFailure> of_others = NoteEnded(ended);
  if (others_ != nullptr) others_->Finished(status, of_others);
}

}  // namespace tensorcast
