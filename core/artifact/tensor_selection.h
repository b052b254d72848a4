// Which tensors of an artifact a request names, and the chunks of the image that they lie in. Pure
// functions, used by the requester and by the code that brings the chunks, so that both mean the same.
//
// A pattern that is the whole name of a tensor means that one. Any other is one of a shell (glob(7)),
// compared with the whole name: `*` is any text, `?` any one character, `[a-z]` one of those, `[!a-z]` one
// that is none of them; nothing else is special, neither dots nor slashes nor backslashes (`[*]` is a star).
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
  // Ascending. Where the image has chunks there is at least one, even if the tensors have no bytes, so that
  // there is a replica to hold.
  std::vector<uint32_t> chunks;
  uint64_t tensor_bytes = 0;  // of the tensors, without what lies beside them in the chunks
};

// INVALID_ARGUMENT for too many patterns, or for one that is too long.
absl::Status CheckTensorPatterns(std::span<const std::string> patterns);

// Every tensor that at least one pattern chooses; without patterns all tensors. INVALID_ARGUMENT as for
// CheckTensorPatterns, for a pattern that chooses nothing (with a name that begins like it), and where
// comparing them all would take seconds.
absl::StatusOr<TensorSelection> SelectTensors(const Manifest& manifest,
                                              std::span<const std::string> patterns);

}  // namespace tensorcast
