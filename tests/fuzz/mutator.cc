#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>

namespace tensorcast::fuzz {
namespace {

constexpr size_t kMaxBytes = 64 << 10;

// Where decoders go wrong: around zero, signs, powers of two and the ends of the widths.
constexpr std::array<uint64_t, 12> kBoundaries = {0,
                                                  1,
                                                  2,
                                                  0x7f,
                                                  0xff,
                                                  0x7fff,
                                                  0xffff,
                                                  0x7fffffff,
                                                  0xffffffff,
                                                  uint64_t{1} << 32,
                                                  ~uint64_t{0},
                                                  ~uint64_t{0} >> 1};

}  // namespace

std::string Mutator::Next() {
  std::string bytes = seeds_.empty() ? std::string() : seeds_[Below(seeds_.size())];
  for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(bytes);
  return bytes.substr(0, kMaxBytes);
}

void Mutator::Change(std::string& bytes) {
  const size_t at = Below(bytes.size());
  switch (Below(8)) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random_());
      break;
    case 2:
      bytes.insert(at, 1 + Below(8), static_cast<char>(random_()));
      break;
    case 3:
      bytes.erase(at, 1 + Below(8));
      break;
    case 4:
      bytes.resize(at);
      break;
    case 5:
      OverwriteWithBoundary(bytes);
      break;
    case 6:
      CopyWithin(bytes);
      break;
    default:
      Splice(bytes);
  }
}

void Mutator::OverwriteWithBoundary(std::string& bytes) {
  const size_t width = size_t{1} << Below(4);
  if (bytes.size() < width) return;
  const uint64_t value = kBoundaries[Below(kBoundaries.size())];
  const size_t at = Below(bytes.size() - width + 1);
  for (size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

void Mutator::CopyWithin(std::string& bytes) {
  const std::string piece = bytes.substr(Below(bytes.size()), 1 + Below(64));
  bytes.insert(Below(bytes.size()), piece);
}

void Mutator::Splice(std::string& bytes) {
  if (seeds_.empty()) return;
  const std::string& other = seeds_[Below(seeds_.size())];
  bytes.resize(Below(bytes.size() + 1));
  bytes += other.substr(Below(other.size()));
}

}  // namespace tensorcast::fuzz
