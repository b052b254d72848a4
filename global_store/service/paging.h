// Page sizes of the listing calls. Private to this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace tensorcast::global_store {

inline constexpr int32_t kDefaultPage = 100;
inline constexpr int32_t kLargestPage = 1000;

inline absl::StatusOr<size_t> PageSize(int32_t asked) {
  if (asked < 0) return absl::InvalidArgumentError("a page size is not negative");
  return static_cast<size_t>(asked == 0 ? kDefaultPage : std::min(asked, kLargestPage));
}

}  // namespace tensorcast::global_store
