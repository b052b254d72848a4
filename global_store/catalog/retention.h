// How many versions of a key are kept: its last bindings, the current one among them. What a put gave for the
// key comes first (KeyRecord::keep), then the longest prefix of the configuration, then the default.
// Differences between versions are kept for more of them, since they are small beside an image.
//
// Plain values. Errors: INVALID_ARGUMENT, saying what is expected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::global_store {

// A key's record names all of its versions, and is written whole with each binding.
inline constexpr uint32_t kMaxKeep = 1000;

// 1 to kMaxKeep.
absl::Status CheckKeep(uint64_t keep);

struct Retention {
  uint32_t keep = 2;                                            // of keys that no prefix fits
  std::map<std::string, uint32_t, std::less<>> by_prefix = {};  // keys that begin so

  // Differences are kept between the last so many versions of a key; 1: there are none.
  uint32_t difference_versions = 8;

  // `pairs` are texts "prefix=number".
  static absl::StatusOr<Retention> Parse(uint64_t keep, const std::vector<std::string>& pairs);
  uint32_t KeepOf(std::string_view key) const;
};

}  // namespace tensorcast::global_store
