// How many versions a key keeps, including the current version. KeyRecord::keep comes first, if a put gave a
// number for the key. Next comes the longest prefix in the configuration, and last the default. Plain values.
// Errors: INVALID_ARGUMENT, with the expected form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::global_store {

// Limited because each binding writes a record with all versions of the key.
inline constexpr uint32_t kMaxKeep = 1000;

// INVALID_ARGUMENT unless `keep` is 1 to kMaxKeep.
absl::Status CheckKeep(uint64_t keep);

struct Retention {
  uint32_t keep = 2;                                            // for keys without a matching prefix
  std::map<std::string, uint32_t, std::less<>> by_prefix = {};  // for keys that begin with the prefix

  // Number of newest versions of a key between which differences are kept; 1: no difference is kept.
  uint32_t difference_versions = 8;

  // `pairs` are texts "prefix=number".
  static absl::StatusOr<Retention> Parse(uint64_t keep, const std::vector<std::string>& pairs);
  uint32_t KeepOf(std::string_view key) const;
};

}  // namespace tensorcast::global_store
