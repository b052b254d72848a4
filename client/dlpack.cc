// Replica::Dlpack: what a tensor is called by DLPack.
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/replica_state.h"
#include "core/tensor/tensor.h"
#include "tensorcast/replica.h"

namespace tensorcast::client {
namespace {

// Of DLDeviceType and DLDataTypeCode, dlpack.h of DLPack 1.1.
constexpr int32_t kCpu = 1;
constexpr int32_t kCuda = 2;
enum class Code : uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4m3fn = 10,
  kFloat8E4m3fnuz = 11,
  kFloat8E5m2 = 12,
  kFloat8E5m2fnuz = 13,
  kFloat8E8m0fnu = 14,
  kFloat6E2m3fn = 15,
  kFloat6E3m2fn = 16,
  kFloat4E2m1fn = 17,
};

Code CodeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return Code::kBool;
    case DType::kF4:
      return Code::kFloat4E2m1fn;
    case DType::kF6E2M3:
      return Code::kFloat6E2m3fn;
    case DType::kF6E3M2:
      return Code::kFloat6E3m2fn;
    case DType::kF8E5M2:
      return Code::kFloat8E5m2;
    case DType::kF8E4M3:
      return Code::kFloat8E4m3fn;
    case DType::kF8E8M0:
      return Code::kFloat8E8m0fnu;
    case DType::kF8E4M3Fnuz:
      return Code::kFloat8E4m3fnuz;
    case DType::kF8E5M2Fnuz:
      return Code::kFloat8E5m2fnuz;
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return Code::kUint;
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return Code::kInt;
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return Code::kFloat;
    case DType::kBF16:
      return Code::kBfloat;
    case DType::kC64:
      return Code::kComplex;
  }
  return Code::kUint;  // no other value is in a manifest
}

// DLPack's dimensions and strides are signed.
absl::Status SetShape(const TensorView& tensor, DlpackView& view) {
  uint64_t elements = 1;
  view.shape.resize(tensor.shape.size());
  view.strides.resize(tensor.shape.size());
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (tensor.shape[i] > kMax || elements > kMax) {
      return absl::OutOfRangeError(
          absl::StrCat("tensor \"", tensor.name, "\" has a dimension that DLPack cannot express"));
    }
    view.shape[i] = static_cast<int64_t>(tensor.shape[i]);
    view.strides[i] = static_cast<int64_t>(elements);
    if (tensor.shape[i] != 0 && elements > kMax / tensor.shape[i]) {
      elements = kMax + 1;
    } else {
      elements *= tensor.shape[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DlpackView> Replica::Dlpack(const TensorView& tensor) const {
  if (state_->claimed == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("replica ", replica_id(), " is not attached"));
  }
  DlpackView view{.device_type = kCpu,
                  .type_code = static_cast<uint8_t>(CodeOf(tensor.dtype)),
                  .type_bits = static_cast<uint8_t>(FindDType(tensor.dtype)->bits)};
  if (absl::Status status = SetShape(tensor, view); !status.ok()) return status;
  if (!state_->device) {
    // The consumer must not write, as the contract of the view says: the mapping is read-only.
    view.data = const_cast<std::byte*>(tensor.host.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    return view;
  }
  if (state_->devices->backend() != "cuda") {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", replica_id(), " is on a GPU of the backend ", state_->devices->backend(),
                     "; other libraries cannot use its addresses"));
  }
  view.device_type = kCuda;
  view.device_id = tensor.device.device;
  view.data = reinterpret_cast<void*>(tensor.device.address);  // NOLINT(performance-no-int-to-ptr)
  return view;
}

}  // namespace tensorcast::client
