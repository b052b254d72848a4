// Selects the tensors that a request names, and the chunks of the image that hold them. Pure functions. Both
// the requester and the code that brings the chunks use them, so that both select the same.
//
// A pattern that equals the name of a tensor selects that tensor. Any other pattern is a shell pattern
// (glob(7)) for the whole name: `*` matches any text, `?` any one character, `[a-z]` one of the listed
// characters, `[!a-z]` any other character. Dots, slashes and backslashes are not special (`[*]` is a star).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"

namespace tensorcast {

inline constexpr size_t kMaxTensorPatterns = 65536;
inline constexpr size_t kMaxTensorPatternBytes = 4096;

struct TensorSelection {
  std::vector<uint32_t> tensors;  // their places in layout().tensors, ascending
  // Ascending. If the image has chunks, at least one is selected, even if the tensors have no bytes: a
  // replica needs a chunk.
  std::vector<uint32_t> chunks;
  uint64_t tensor_bytes = 0;  // bytes of only the tensors, without other bytes of the chunks
};

// INVALID_ARGUMENT for too many patterns, or for one that is too long.
absl::Status CheckTensorPatterns(std::span<const std::string> patterns);

// Every tensor that at least one pattern selects; without patterns, all tensors. INVALID_ARGUMENT as
// CheckTensorPatterns, for a pattern that selects nothing (the error suggests a similar name), and if
// comparing all patterns would take seconds.
absl::StatusOr<TensorSelection> SelectTensors(const Manifest& manifest,
                                              std::span<const std::string> patterns);

}  // namespace tensorcast
