#include "core/artifact/tensor_selection.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

// One character, or one range of a set, against one of a name at a time: what all the wildcards of a request
// may cost, less than a second. 32 patterns like `*.weight` and 100,000 tensors stay below.
constexpr uint64_t kMaxSteps = uint64_t{1} << 27;

struct Character {
  uint32_t value = 0;
  size_t bytes = 1;
};

// REQUIRES: `text` is valid UTF-8 and `at` the first byte of a character of it.
Character CharacterAt(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) return {.value = first, .bytes = 1};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  uint32_t value = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) value = value << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3Fu);
  return {.value = value, .bytes = bytes};
}

// A pattern, read once and then compared with many names.
class Glob {
 public:
  // REQUIRES: valid UTF-8.
  explicit Glob(std::string_view pattern) {
    bool may_have_sets = true;
    for (size_t at = 0; at < pattern.size();) {
      const Character character = CharacterAt(pattern, at);
      at += character.bytes;
      Piece piece{.kind = Piece::kRanges, .ranges = {{character.value, character.value}}};
      if (character.value == '?') piece = {.kind = Piece::kAny};
      if (character.value == '*') piece = {.kind = Piece::kText};
      // Without its end a bracket is a bracket, and so are all that follow: where one of them ended, this one
      // would. They are not looked at again, which would take a time that grows with the square of the
      // length.
      if (character.value == '[' && may_have_sets) {
        const std::optional<size_t> end = ReadSet(pattern, at, piece);
        may_have_sets = end.has_value();
        at = end.value_or(at);
      }
      pieces_.push_back(std::move(piece));
    }
  }

  // Adds to `steps` what the comparison took, and gives up where they are too many. The text that the last
  // star takes grows by one character whenever what follows it does not fit, and the comparison goes on
  // behind it. Earlier stars keep what they have: whatever fits further on does so from there, too. So the
  // time grows with the product of both lengths and never faster.
  bool Matches(std::string_view name, uint64_t& steps) const {
    size_t piece = 0;
    size_t at = 0;
    std::optional<size_t> star;
    size_t star_ends = 0;
    while (at < name.size()) {
      steps += piece < pieces_.size() ? std::max<size_t>(1, pieces_[piece].ranges.size()) : 1;
      if (steps > kMaxSteps) return false;
      if (piece < pieces_.size() && pieces_[piece].kind == Piece::kText) {
        star = piece++;
        star_ends = at;
        continue;
      }
      const Character character = CharacterAt(name, at);
      if (piece < pieces_.size() && pieces_[piece].Takes(character.value)) {
        ++piece;
        at += character.bytes;
        continue;
      }
      if (!star.has_value()) return false;
      star_ends += CharacterAt(name, star_ends).bytes;
      piece = *star + 1;
      at = star_ends;
    }
    while (piece < pieces_.size() && pieces_[piece].kind == Piece::kText) ++piece;
    return piece == pieces_.size();
  }

 private:
  struct Piece {
    enum Kind : uint8_t { kRanges, kNotRanges, kAny, kText } kind = kRanges;
    std::vector<std::pair<uint32_t, uint32_t>> ranges = {};  // both ends in it

    bool Takes(uint32_t character) const {
      if (kind == kAny) return true;
      const bool in_ranges = std::ranges::any_of(ranges, [character](const auto& range) {
        return range.first <= character && character <= range.second;
      });
      return in_ranges == (kind == kRanges);
    }
  };

  // For a set with its bracket just before `at`: where it ends. A closing bracket that comes first is in the
  // set, and so is a hyphen at either end.
  static std::optional<size_t> ReadSet(std::string_view pattern, size_t at, Piece& piece) {
    Piece set;
    if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) {
      set.kind = Piece::kNotRanges;
      ++at;
    }
    while (at < pattern.size() && (pattern[at] != ']' || set.ranges.empty())) {
      const Character first = CharacterAt(pattern, at);
      at += first.bytes;
      Character last = first;
      if (at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']') {
        last = CharacterAt(pattern, at + 1);
        at += 1 + last.bytes;
      }
      set.ranges.emplace_back(first.value, last.value);
    }
    if (at >= pattern.size()) return std::nullopt;
    piece = std::move(set);
    return at + 1;
  }

  std::vector<Piece> pieces_;
};

absl::Status NothingMatches(const Manifest& manifest, std::string_view pattern) {
  const std::string message = absl::StrCat("select tensors of ", manifest.id(), " by ", QuoteName(pattern));
  const std::vector<Tensor>& tensors = manifest.layout().tensors;
  const auto same = [pattern](const Tensor& tensor) {
    return std::ranges::mismatch(tensor.name, pattern).in1 - tensor.name.begin();
  };
  const auto nearest = std::ranges::max_element(tensors, {}, same);
  if (nearest == tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(message, ": the artifact has no tensors; name another artifact"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(message, ": the artifact has ", tensors.size(),
                   " tensors, and no name equals or matches this text; use another ",
                   "name or pattern; the nearest name is ", QuoteName(nearest->name)));
}

absl::Status TooLong(const Manifest& manifest, size_t patterns, std::string_view pattern) {
  return absl::InvalidArgumentError(absl::StrCat(
      "select tensors by ", QuoteName(pattern), ": comparing ", patterns, " patterns with the names of ",
      manifest.layout().tensors.size(), " tensors takes too long; use fewer wildcards, or whole names"));
}

std::vector<uint32_t> ChunksOf(const ImageLayout& layout, std::span<const uint32_t> tensors) {
  std::vector<uint32_t> chunks;
  const uint32_t count = layout.chunk_count();
  uint32_t next = 0;
  for (const uint32_t index : tensors) {
    const Tensor& tensor = layout.tensors[index];
    if (tensor.nbytes == 0) continue;
    // A chunk that the tensor before reaches into is listed already.
    next = std::max(next, static_cast<uint32_t>(tensor.offset / layout.chunk_bytes));
    const auto last = static_cast<uint32_t>((tensor.offset + tensor.nbytes - 1) / layout.chunk_bytes);
    for (; next <= last && next < count; ++next) chunks.push_back(next);
  }
  // Tensors without bytes lie in no chunk.
  if (chunks.empty() && count > 0) chunks.push_back(0);
  return chunks;
}

}  // namespace

absl::Status CheckTensorPatterns(std::span<const std::string> patterns) {
  if (patterns.size() > kMaxTensorPatterns) {
    return absl::InvalidArgumentError(
        absl::StrCat("select tensors: ", patterns.size(), " names and patterns were given, and at most ",
                     kMaxTensorPatterns, " are allowed; use wildcards, or ask for all tensors"));
  }
  for (const std::string& pattern : patterns) {
    if (pattern.size() > kMaxTensorPatternBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("select tensors: the name or pattern ", QuoteName(pattern), " has ", pattern.size(),
                       " bytes, and at most ", kMaxTensorPatternBytes, " are allowed; use a wildcard"));
    }
    if (!IsValidUtf8(pattern)) {
      return absl::InvalidArgumentError(absl::StrCat("select tensors: the name or pattern ",
                                                     QuoteName(pattern),
                                                     " is not valid UTF-8; give UTF-8 text"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSelection> SelectTensors(const Manifest& manifest,
                                              std::span<const std::string> patterns) {
  TC_RETURN_IF_ERROR(CheckTensorPatterns(patterns));
  const std::vector<Tensor>& tensors = manifest.layout().tensors;
  std::vector<bool> chosen(tensors.size(), patterns.empty());
  uint64_t steps = 0;
  for (const std::string& pattern : patterns) {
    // A whole name goes first: names may have the characters of wildcards in them.
    if (const Tensor* named = manifest.Find(pattern); named != nullptr) {
      chosen[named - tensors.data()] = true;
      continue;
    }
    const Glob glob(pattern);
    bool matched = false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (glob.Matches(tensors[i].name, steps)) matched = chosen[i] = true;
      if (steps > kMaxSteps) return TooLong(manifest, patterns.size(), pattern);
    }
    if (!matched) return NothingMatches(manifest, pattern);
  }

  TensorSelection selection;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (!chosen[i]) continue;
    selection.tensors.push_back(i);
    selection.tensor_bytes += tensors[i].nbytes;
  }
  selection.chunks = ChunksOf(manifest.layout(), selection.tensors);
  return selection;
}

}  // namespace tensorcast
