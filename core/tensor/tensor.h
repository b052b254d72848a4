// A tensor's description: its name, element type, shape, and where its bytes are in the image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tensor/dtype.h"

namespace tensorcast {

struct Tensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;  // empty: a scalar (0-dim)
  uint64_t offset = 0;          // bytes from the image's start; a multiple of kTensorAlignment
  uint64_t nbytes = 0;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// Bytes of a packed tensor of this type and shape. INVALID_ARGUMENT when the product overflows 64 bits or,
// for sub-byte types, does not fill whole bytes.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<uint64_t>& shape);

}  // namespace tensorcast
