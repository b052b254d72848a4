// What is written down of a ready replica so that another daemon finds it again: FORMAT.md. A pure function
// of bytes; what it gives is still to be compared with its digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
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

}  // namespace tensorcast::daemon
