#include "client/dlpack.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/replica_state.h"
#include "core/tensor/tensor.h"
#include "tensorcast/replica.h"

namespace tensorcast::client {
namespace {

// Values of DLDeviceType, and below of DLDataTypeCode, in dlpack.h of DLPack 1.1.
constexpr int32_t kCpu = 1;
constexpr int32_t kCuda = 2;

struct Coded {
  DType dtype;
  uint8_t code;  // DLDataTypeCode
};
// One code stands for several widths (`bits`), so a type is found by both.
constexpr Coded kCodes[] = {
    {DType::kI8, 0},      {DType::kI16, 0},         {DType::kI32, 0},     {DType::kI64, 0},
    {DType::kU8, 1},      {DType::kU16, 1},         {DType::kU32, 1},     {DType::kU64, 1},
    {DType::kF16, 2},     {DType::kF32, 2},         {DType::kF64, 2},     {DType::kBF16, 4},
    {DType::kC64, 5},     {DType::kBool, 6},        {DType::kF8E4M3, 10}, {DType::kF8E4M3Fnuz, 11},
    {DType::kF8E5M2, 12}, {DType::kF8E5M2Fnuz, 13}, {DType::kF8E8M0, 14}, {DType::kF6E2M3, 15},
    {DType::kF6E3M2, 16}, {DType::kF4, 17},
};

// DLPack's dimensions and strides are signed.
absl::Status SetShape(const TensorView& tensor, DlpackView& view) {
  uint64_t elements = 1;
  view.shape.resize(tensor.shape.size());
  view.strides.resize(tensor.shape.size());
  // Row-major strides, counted in elements from the last dimension to the first. `elements` is the product of
  // those behind this one; kMax + 1 stands for an overflow, which is an error only where a stride needs it.
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (tensor.shape[i] > kMax || elements > kMax) {
      return absl::OutOfRangeError(
          absl::StrCat("dlpack of tensor \"", tensor.name, "\": the size or the stride of dimension ", i,
                       " is above ", kMax, ", the max of DLPack; read the tensor's bytes instead"));
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

std::optional<DType> DTypeOfDlpack(uint8_t code, uint8_t bits) {
  const auto* const found = std::ranges::find_if(
      kCodes, [&](const Coded& coded) { return coded.code == code && FindDType(coded.dtype)->bits == bits; });
  return found == std::end(kCodes) ? std::nullopt : std::optional(found->dtype);
}

absl::StatusOr<DlpackView> Replica::Dlpack(const TensorView& tensor) const {
  if (state_->claimed == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("dlpack of replica ", replica_id(), ": ", state_->WhyNotMapped()));
  }
  DlpackView view{.device_type = kCpu,
                  .type_code = std::ranges::find(kCodes, tensor.dtype, &Coded::dtype)->code,
                  .type_bits = static_cast<uint8_t>(FindDType(tensor.dtype)->bits)};
  TC_RETURN_IF_ERROR(SetShape(tensor, view));
  if (!state_->device) {
    // The consumer must not write, as the contract of the view says: the mapping is read-only.
    view.data = const_cast<std::byte*>(tensor.host.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    return view;
  }
  if (state_->devices->backend() != "cuda") {
    return absl::FailedPreconditionError(absl::StrCat(
        "dlpack of replica ", replica_id(), ": other libraries cannot use addresses of the backend ",
        state_->devices->backend(), "; get the artifact at cpu"));
  }
  view.device_type = kCuda;
  view.device_id = tensor.device.device;
  view.data = reinterpret_cast<void*>(tensor.device.address);  // NOLINT(performance-no-int-to-ptr)
  return view;
}

}  // namespace tensorcast::client
