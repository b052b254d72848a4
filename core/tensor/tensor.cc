#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

#include "absl/log/check.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast {
namespace {

// The safetensors format defines the names.
constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
};

// FindDType(DType) indexes by value - 1, so that the order of the table is checked when it is compiled.
constexpr bool TableIsInValueOrder() {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(TableIsInValueOrder());

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

std::string Describe(const DTypeInfo& dtype, const std::vector<uint64_t>& shape) {
  // A shape can have any rank; a message can't be of any length.
  constexpr size_t kShownDimensions = 16;
  const size_t shown = std::min(shape.size(), kShownDimensions);
  return absl::StrCat("compute the size of a tensor of ", dtype.name, " [",
                      absl::StrJoin(shape.begin(), shape.begin() + shown, ", "),
                      shape.size() > shown ? ", ..." : "", "]");
}

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kDTypes; }

const DTypeInfo* FindDType(DType dtype) {
  const size_t value = static_cast<size_t>(dtype);
  return value >= 1 && value <= std::size(kDTypes) ? &kDTypes[value - 1] : nullptr;
}

// The table is short: a linear search is as fast as a map.
const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::string_view DTypeName(DType dtype) {
  const DTypeInfo* info = FindDType(dtype);
  CHECK(info != nullptr) << "dtype value " << static_cast<int>(dtype) << " is not in the enumeration";
  return info->name;
}

absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<uint64_t>& shape) {
  const DTypeInfo* info = FindDType(dtype);
  if (info == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("compute the size of a tensor: dtype value ",
                                                   static_cast<int>(dtype),
                                                   " is unknown; use a dtype that this release knows"));
  }
  // A zero makes the product zero wherever it stands, however large the other dimensions are: so it is looked
  // for before the product can overflow.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  // 128 bits hold each product, since it is checked after every factor.
  absl::uint128 elements = 1;
  for (const uint64_t dimension : shape) {
    elements *= dimension;
    if (elements > kMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(*info, shape), ": the number of elements does not fit in 64 bits; correct the shape"));
    }
  }
  const absl::uint128 bits = elements * info->bits;
  // Elements below a byte are packed: two F4 make a byte, four F6 make three.
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(*info, shape), ": the elements do not fill whole bytes; pad the shape"));
  }
  if (bits / 8 > kMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(*info, shape), ": the number of bytes does not fit in 64 bits; correct the shape"));
  }
  return absl::Uint128Low64(bits / 8);
}

}  // namespace tensorcast
