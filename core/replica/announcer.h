// What a receiver was told of an availability, and what it is to be told next: the difference, in as few
// pieces as possible. For code that announces it to others, over a network or a socket. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/replica/availability.h"

namespace tensorcast {

// As Availability::AddWords takes it.
struct Announcement {
  uint32_t first = 0;  // a multiple of 64
  std::vector<uint64_t> words;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

// Whether an announcement, from any peer, is valid for an image of so many chunks: its last word has a
// chunk, and no bit behind the image is set.
bool FitsImage(uint32_t first, std::span<const uint64_t> words, uint32_t chunks);

class Announcer {
 public:
  // `only`, where it is not empty: the chunks that may be told of, a bit each, as Availability::Words has
  // them.
  explicit Announcer(std::shared_ptr<const Availability> availability, std::vector<uint64_t> only = {});

  // Announces what is there and was not announced yet, in announcements of at most so many words. Empty:
  // nothing.
  std::vector<Announcement> TakeNews(size_t max_words);
  // The chunks that were announced.
  const std::vector<uint64_t>& told() const { return told_; }

 private:
  const std::shared_ptr<const Availability> availability_;
  const std::vector<uint64_t> only_;
  std::vector<uint64_t> told_;  // chunk i is bit i % 64 of word i / 64
};

}  // namespace tensorcast
