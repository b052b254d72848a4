#include "core/replica/announcer.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

constexpr uint32_t kWordBits = 64;

}  // namespace

bool FitsImage(uint32_t first, std::span<const uint64_t> words, uint32_t chunks) {
  // In 64 bits, where no number of a peer can overflow.
  const uint64_t end = first + words.size() * kWordBits;
  const uint64_t past = end > chunks ? end - chunks : 0;
  return !words.empty() && past < kWordBits && (past == 0 || words.back() >> (kWordBits - past) == 0);
}

Announcer::Announcer(std::shared_ptr<const Availability> availability, std::vector<uint64_t> only)
    : availability_(std::move(availability)),
      only_(std::move(only)),
      told_((availability_->chunks() + kWordBits - 1) / kWordBits) {
  CHECK(only_.empty() || only_.size() == told_.size());
}

// An announcement begins at a word with news and ends with the last one that it has room for; words between
// them are told again, which changes nothing.
std::vector<Announcement> Announcer::TakeNews(size_t max_words) {
  std::vector<uint64_t> words = availability_->Words();
  // A bit outside of `only_` is never told, so `told_` has none of them and they are never news.
  for (size_t i = 0; i < only_.size(); ++i) words[i] &= only_[i];
  std::vector<Announcement> news;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == told_[i]) continue;
    const auto first = words.begin() + static_cast<ptrdiff_t>(i);
    size_t count = std::min(words.size() - i, max_words);
    // It ends at word i at the latest, which has news.
    while (words[i + count - 1] == told_[i + count - 1]) --count;
    // The words travel as they are now, not as what changed: a receiver that hears one twice is not misled.
    news.push_back({.first = static_cast<uint32_t>(i * kWordBits),
                    .words = {first, first + static_cast<ptrdiff_t>(count)}});
    i += count - 1;
  }
  told_ = std::move(words);
  return news;
}

}  // namespace tensorcast
