// Remembers which chunks of an availability a receiver was told of, and gives the news since then in as few
// pieces as possible. For code that announces an availability over a network or a socket. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/replica/availability.h"

namespace tensorcast {

// News in the form of the arguments of Availability::AddWords.
struct Announcement {
  uint32_t first = 0;  // a multiple of 64
  std::vector<uint64_t> words;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

// Whether a peer's announcement is valid for an image of `chunks` chunks: its last word has a chunk of the
// image, and no bit past the image is set.
bool FitsImage(uint32_t first, std::span<const uint64_t> words, uint32_t chunks);

class Announcer {
 public:
  // If `only` is not empty, only its chunks are announced; it has a bit for each chunk, as
  // Availability::Words.
  explicit Announcer(std::shared_ptr<const Availability> availability, std::vector<uint64_t> only = {});

  // Returns the chunks that are present and not announced yet, in announcements of at most `max_words` words.
  // Empty: there is no news.
  std::vector<Announcement> TakeNews(size_t max_words);
  // The chunks that were announced.
  const std::vector<uint64_t>& told() const { return told_; }

 private:
  const std::shared_ptr<const Availability> availability_;
  const std::vector<uint64_t> only_;
  std::vector<uint64_t> told_;  // chunk i is bit i % 64 of word i / 64
};

}  // namespace tensorcast
