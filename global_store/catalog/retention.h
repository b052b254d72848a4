// How many versions of a key are kept: its last bindings, including the current one. A number that a put gave
// for the key comes first (KeyRecord::keep), then the longest prefix in the configuration, then the default.
// Differences are kept between more versions, since they are small beside an image.
//
// Plain values. Errors: INVALID_ARGUMENT, with the expected form.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::global_store {

// Limited because a key's record names all of its versions and is written whole with each binding.
inline constexpr uint32_t kMaxKeep = 1000;

// INVALID_ARGUMENT unless `keep` is 1 to kMaxKeep.
absl::Status CheckKeep(uint64_t keep);

struct Retention {
  uint32_t keep = 2;                                            // for keys without a matching prefix
  std::map<std::string, uint32_t, std::less<>> by_prefix = {};  // for keys that begin with the prefix

  // Differences are kept between this many last versions of a key; 1: none are kept.
  uint32_t difference_versions = 8;

  // `pairs` are texts "prefix=number".
  static absl::StatusOr<Retention> Parse(uint64_t keep, const std::vector<std::string>& pairs);
  uint32_t KeepOf(std::string_view key) const;
};

}  // namespace tensorcast::global_store
