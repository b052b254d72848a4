// A tensor's description: its name, element type, shape, and the place of its bytes in the image. Value types
// and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

// The element types of the safetensors format, with the names of that format
// (https://github.com/huggingface/safetensors, `Dtype` in safetensors/src/tensor.rs).
//
// The values are part of the manifest's format: never renumber, only append.
enum class DType : uint8_t {
  kBool = 1,
  kF4 = 2,
  kF6E2M3 = 3,
  kF6E3M2 = 4,
  kU8 = 5,
  kI8 = 6,
  kF8E5M2 = 7,
  kF8E4M3 = 8,
  kF8E8M0 = 9,
  kI16 = 10,
  kU16 = 11,
  kF16 = 12,
  kBF16 = 13,
  kI32 = 14,
  kU32 = 15,
  kF32 = 16,
  kC64 = 17,
  kF64 = 18,
  kI64 = 19,
  kU64 = 20,
  kF8E4M3Fnuz = 21,
  kF8E5M2Fnuz = 22,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // as safetensors writes it: "BF16", "F8_E4M3"
  uint32_t bits;          // of one element; F4 and F6 are packed
};

// All element types, in the order of their values.
std::span<const DTypeInfo> AllDTypes();

// nullptr for a value or name that is not an element type.
const DTypeInfo* FindDType(DType dtype);
const DTypeInfo* FindDType(std::string_view name);

// REQUIRES: dtype is in the enumeration.
std::string_view DTypeName(DType dtype);

struct Tensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;  // empty: a scalar (0-dim)
  uint64_t offset = 0;          // bytes from the image's start; a multiple of kTensorAlignment
  uint64_t nbytes = 0;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// Bytes of a contiguous tensor of this type and shape. INVALID_ARGUMENT for an unknown type, and if the count
// of elements or bytes overflows 64 bits or, for sub-byte types, the elements do not fill whole bytes.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<uint64_t>& shape);

}  // namespace tensorcast
