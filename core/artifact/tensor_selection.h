// Selects the tensors that a request names, and the chunks of the image that hold them. Pure functions. The
// client and the daemon both use these functions.
//
// A pattern that equals the name of a tensor selects that tensor. Any other pattern is a shell pattern
// (glob(7)) for the whole name. `*` matches any text, `?` one character, `[a-z]` one of the listed
// characters, and `[!a-z]` one character that is not listed. Dots, slashes and backslashes are ordinary
// characters; `[*]` matches a star.
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
  std::vector<uint32_t> tensors;  // their indices in layout().tensors, ascending
  // Ascending. If the image has chunks, at least one is selected, even if the tensors have no bytes, because
  // a replica needs a chunk.
  std::vector<uint32_t> chunks;
  uint64_t tensor_bytes = 0;  // the sum over the tensors, which may be less than the bytes of the chunks
};

// INVALID_ARGUMENT for too many patterns, and for a pattern that is too long or not UTF-8.
absl::Status CheckTensorPatterns(std::span<const std::string> patterns);

// Selects every tensor that matches at least one pattern; without patterns, all tensors. INVALID_ARGUMENT if
// CheckTensorPatterns refuses the patterns, if a pattern selects nothing (the error suggests a similar name),
// or if the comparison would take more than about a second.
absl::StatusOr<TensorSelection> SelectTensors(const Manifest& manifest,
                                              std::span<const std::string> patterns);

}  // namespace tensorcast
