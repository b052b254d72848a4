// The header and the name of a packed file (FORMAT.md). Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/source/bounce_buffers.h"

namespace tensorcast {

inline constexpr uint64_t kPackedAlignment = kBlockBytes;  // of the parts of a packed file
inline constexpr uint64_t kPackedHeaderBytes = 4096;
inline constexpr uint32_t kPackedVersion = 1;
inline constexpr std::string_view kPackedExtension = ".tcpack";

struct PackedHeader {
  uint64_t manifest_offset = kPackedHeaderBytes;
  uint64_t manifest_bytes = 0;
  uint64_t image_offset = 0;
  uint64_t image_bytes = 0;

  // The size of the whole file; the image is padded to the alignment.
  uint64_t file_bytes() const { return image_offset + AlignUp(image_bytes); }
  friend bool operator==(const PackedHeader&, const PackedHeader&) = default;
};

// Returns kPackedHeaderBytes bytes.
std::string EncodePackedHeader(const PackedHeader& header);

// INVALID_ARGUMENT for bytes that are not a header or are damaged, and for parts that are not in order or do
// not fit a file of `file_bytes` bytes. UNIMPLEMENTED for a later version.
absl::StatusOr<PackedHeader> DecodePackedHeader(std::span<const std::byte> bytes, uint64_t file_bytes);

// "tc2-abc.tcpack" for "tc2:abc".
std::string PackedFileName(std::string_view artifact_id);
// The inverse of PackedFileName; empty for a name that is not a packed file's.
std::string ArtifactIdOfFileName(std::string_view file_name);

}  // namespace tensorcast
