#include "core/tensor/dtype.h"

#include <cstddef>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

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

// FindDType(DType) indexes by value - 1.
constexpr bool TableIsInValueOrder() {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(TableIsInValueOrder());

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kDTypes; }

const DTypeInfo* FindDType(DType dtype) {
  const size_t value = static_cast<size_t>(dtype);
  return value >= 1 && value <= std::size(kDTypes) ? &kDTypes[value - 1] : nullptr;
}

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

}  // namespace tensorcast
