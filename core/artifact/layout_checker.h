// The rules of an image's layout, one tensor at a time, so that AssignOffsets, ValidateLayout and the
// manifest's decoder share them and the decoder can say at which byte its input breaks one. For this folder's
// own use. Thread-compatible.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "core/artifact/layout.h"

namespace tensorcast {

class LayoutChecker {
 public:
  explicit LayoutChecker(size_t expected_tensors) { names_.reserve(expected_tensors); }

  // Checks the next tensor and returns the offset that it must have; its own offset is not looked at. The
  // tensor must stay where it is as long as this object lives. INVALID_ARGUMENT as for AssignOffsets.
  absl::StatusOr<uint64_t> Next(const Tensor& tensor);

  // Of the tensors so far.
  uint64_t image_bytes() const { return image_bytes_; }

 private:
  uint64_t image_bytes_ = 0;
  absl::flat_hash_set<std::string_view> names_;
};

// INVALID_ARGUMENT for a chunk size that is not a positive multiple of 4096, or one that cuts the image into
// more than 2^32-1 chunks.
absl::Status CheckChunkBytes(uint64_t chunk_bytes, uint64_t image_bytes);

}  // namespace tensorcast
