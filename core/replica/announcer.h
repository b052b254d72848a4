// Remembers the chunks of an availability that were announced to a receiver, and returns the new chunks as
// compact announcements. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/replica/availability.h"

namespace tensorcast {

// The arguments of Availability::AddWords: chunk `first` + i is bit i % 64 of words[i / 64].
struct Announcement {
  uint32_t first = 0;  // a multiple of 64
  std::vector<uint64_t> words;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

// Whether a peer's words fit an image of `chunks` chunks: there are words, the last word covers a chunk of
// the image, and no bit past the last chunk is set. Does not check that `first` is a multiple of 64.
bool FitsImage(uint32_t first, std::span<const uint64_t> words, uint32_t chunks);

class Announcer {
 public:
  // If `only` (bits as in Availability::Words) is not empty, chunks outside `only` are not announced.
  explicit Announcer(std::shared_ptr<const Availability> availability, std::vector<uint64_t> only = {});

  // Returns the chunks that are present and were not returned before, in announcements of at most `max_words`
  // words. They may repeat earlier chunks. Returns none if there are no new chunks. REQUIRES: max_words > 0.
  std::vector<Announcement> TakeNews(size_t max_words);
  // The chunks that TakeNews has returned.
  const std::vector<uint64_t>& told() const { return told_; }

 private:
  const std::shared_ptr<const Availability> availability_;
  const std::vector<uint64_t> only_;
  std::vector<uint64_t> told_;  // chunk i is bit i % 64 of word i / 64
};

}  // namespace tensorcast
