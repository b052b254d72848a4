// The header of a packed file, as FORMAT.md writes it. Pure functions; thread-safe.
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

  // Of the whole file: the image is padded to the alignment.
  uint64_t file_bytes() const { return image_offset + AlignUp(image_bytes); }
  friend bool operator==(const PackedHeader&, const PackedHeader&) = default;
};

// kPackedHeaderBytes bytes.
std::string EncodePackedHeader(const PackedHeader& header);

// INVALID_ARGUMENT for bytes that are not a header, are damaged, or describe a file other than one of
// `file_bytes` with its parts in order. UNIMPLEMENTED for a later version.
absl::StatusOr<PackedHeader> DecodePackedHeader(std::span<const std::byte> bytes, uint64_t file_bytes);

// "tc2:abc" <-> "tc2-abc.tcpack". "" for a name that is not a packed file's.
std::string PackedFileName(std::string_view artifact_id);
std::string ArtifactIdOfFileName(std::string_view file_name);

}  // namespace tensorcast
