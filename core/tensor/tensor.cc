#include "core/tensor/tensor.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

std::string Describe(const DTypeInfo& dtype, const std::vector<uint64_t>& shape) {
  // A shape can have any rank; a message can't be of any length.
  constexpr size_t kShownDimensions = 16;
  const size_t shown = std::min(shape.size(), kShownDimensions);
  return absl::StrCat(dtype.name, " [", absl::StrJoin(shape.begin(), shape.begin() + shown, ", "),
                      shape.size() > shown ? ", ..." : "", "]");
}

}  // namespace

absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<uint64_t>& shape) {
  const DTypeInfo* info = FindDType(dtype);
  if (info == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype value ", static_cast<int>(dtype)));
  }
  // A zero makes the product zero wherever it stands, however large the other dimensions are.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  absl::uint128 elements = 1;
  for (const uint64_t dimension : shape) {
    elements *= dimension;
    if (elements > kMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(*info, shape), " has more elements than fit in 64 bits"));
    }
  }
  const absl::uint128 bits = elements * info->bits;
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(*info, shape), " does not fill whole bytes"));
  }
  if (bits / 8 > kMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(*info, shape), " has more bytes than fit in 64 bits"));
  }
  return absl::Uint128Low64(bits / 8);
}

}  // namespace tensorcast
