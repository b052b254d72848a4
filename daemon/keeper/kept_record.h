// The keeper's record of a ready replica (FORMAT.md). The next daemon compares the replica's bytes with their
// digests. Thread-safe functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/memory/host_pool.h"

namespace tensorcast::daemon {

struct KeptRecord {
  std::string manifest;  // canonical bytes
  std::vector<NamedExtent> extents;
  friend bool operator==(const KeptRecord&, const KeptRecord&) = default;
};

std::string EncodeRecord(const KeptRecord& record);
// INVALID_ARGUMENT for bytes in another format, or of another version.
absl::StatusOr<KeptRecord> DecodeRecord(std::string_view bytes);

// Writes the bytes to a new file in memory.
absl::StatusOr<UniqueFd> WriteKept(std::string_view bytes);
absl::StatusOr<std::string> ReadKept(int fd);
// The size of the file in bytes; 0 if `fd` is not a file.
uint64_t KeptBytes(int fd);

// The prefixes of the names in the keeper. The digit is the version of the content's format.
inline constexpr std::string_view kSegmentPrefix = "segment1/";
inline constexpr std::string_view kReplicaPrefix = "replica1/";  // followed by the artifact's id
inline constexpr std::string_view kGpuPrefix = "gpu1/";          // followed by the replica's id
inline constexpr std::string_view kSizePrefix = "size1/";        // followed by the pool's size in bytes
std::string SegmentName(std::string_view name);
std::string RecordName(std::string_view artifact_id);

}  // namespace tensorcast::daemon
