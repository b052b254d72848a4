#include "core/handles/follower.h"

#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

uint32_t Count(const std::vector<uint64_t>& words) {
  uint32_t count = 0;
  for (const uint64_t word : words) count += static_cast<uint32_t>(std::popcount(word));
  return count;
}

}  // namespace

Follower::Follower(const Claim& claim, std::function<void()> on_news)
    : availability_(claim.availability), on_news_(std::move(on_news)) {
  if (availability_ == nullptr) return;
  readable_ = ReadableChunks(claim.handles, availability_->image_bytes(), availability_->chunk_bytes());
  announcer_.emplace(availability_, readable_);
  // The observer runs under the availability's lock, in the middle of an ingest, so it only raises a flag.
  // The flag also keeps the server from being woken for each chunk: until Take lowers it, later chunks wake
  // no thread.
  watch_ = availability_->OnChange([this] {
    if (!noted_.exchange(true)) on_news_();
  });
}

SteadyTime Follower::due() const { return !over_ && noted_.load() ? next_ : SteadyTime::InfiniteFuture(); }

std::vector<Frame> Follower::Take(SteadyTime now) {
  std::vector<Frame> frames;
  if (over_ || now < next_) return frames;
  noted_.store(false);  // before the look: what comes after it is noted again
  // Nothing is added once it has ended, so all that there will be is seen by the look after this one.
  const bool ended = availability_ == nullptr || availability_->ended();
  if (announcer_.has_value()) {
    std::vector<Announcement> news = announcer_->TakeNews(std::numeric_limits<size_t>::max());
    // The first message has the whole bitmap; later ones have only what was added.
    if (!std::exchange(begun_, true)) {
      frames.emplace_back(HaveFrame{0, announcer_->told()});
    } else {
      for (Announcement& more : news) frames.emplace_back(HaveFrame{more.first, std::move(more.words)});
    }
  }
  if (std::optional<absl::Status> end = End(ended); end.has_value()) {
    frames.emplace_back(HaveEndFrame{*std::move(end)});
    over_ = true;
    watch_ = Availability::Watch();
  }
  // At most one message each interval: chunks that come in between are told together.
  if (!frames.empty()) next_ = now + kInterval;
  return frames;
}

std::optional<absl::Status> Follower::End(bool ended) const {
  if (availability_ == nullptr) return absl::OkStatus();
  const uint32_t told = Count(announcer_->told());
  if (told == availability_->chunks()) return absl::OkStatus();
  if (ended) {
    if (absl::Status why = availability_->end(); !why.ok()) return why;
  }
  // A partial replica that an ingest makes more of gets more memory, of which this client has no handle.
  const bool told_all_readable = !readable_.empty() && told == Count(readable_);
  if (!ended && !(told_all_readable && availability_->count() > told)) return std::nullopt;
  return absl::UnavailableError(absl::StrCat(
      "follow a replica: only ", told, " of the replica's ", availability_->chunks(),
      " chunks are in the memory that the client attached; attach the replica again to read the other "
      "chunks"));
}

}  // namespace tensorcast
