// What is written down so that another daemon finds it again: FORMAT.md. Of a ready replica that is a record,
// which is still to be compared with its digests.
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
// INVALID_ARGUMENT for what was not written so, or by another version.
absl::StatusOr<KeptRecord> DecodeRecord(std::string_view bytes);

// A file in memory, for the keeper.
absl::StatusOr<UniqueFd> WriteKept(std::string_view bytes);
absl::StatusOr<std::string> ReadKept(int fd);
// 0 of what is not a file.
uint64_t KeptBytes(int fd);

// The name of a segment with the keeper.
inline constexpr std::string_view kSegmentPrefix = "segment1/";
std::string SegmentName(std::string_view name);

}  // namespace tensorcast::daemon
