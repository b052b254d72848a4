#include "python/src/put_tensors.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/dlpack.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig>;

constexpr int32_t kCpu = 1;  // DLDeviceType
constexpr int32_t kCuda = 2;
constexpr int32_t kCudaHost = 3;
constexpr int32_t kCudaManaged = 13;

constexpr uintptr_t kPageBytes = 4096;

[[noreturn]] void Refuse(const std::string& name, std::string_view why) {
  Raise(absl::InvalidArgumentError(absl::StrCat("put tensor \"", name, "\": ", why)));
}

// A caller names the dtype where its array cannot: NumPy has none for BF16, for example.
DType ChooseDType(const std::string& name, const std::optional<std::string>& wanted, const AnyArray& array) {
  if (wanted.has_value()) {
    const DTypeInfo* info = FindDType(*wanted);
    if (info == nullptr) {
      Refuse(name, absl::StrCat("safetensors has no dtype ", *wanted, "; pass a dtype of safetensors"));
    }
    return info->dtype;
  }
  const nb::dlpack::dtype type = array.dtype();
  const std::optional<DType> dtype =
      type.lanes == 1 ? client::DTypeOfDlpack(type.code, type.bits) : std::nullopt;
  if (!dtype.has_value()) {
    Refuse(name, "safetensors has no name for the tensor's dtype; convert the tensor to another dtype");
  }
  return *dtype;
}

// Checks what the client library cannot, which gets only addresses and reads them on threads of its own.
client::PutTensor Borrow(const nb::handle& item, std::vector<AnyArray>& arrays) {
  const auto name = nb::cast<std::string>(item[0]);
  const auto dtype = nb::cast<std::optional<std::string>>(item[1]);
  const auto shape = nb::cast<std::optional<std::vector<uint64_t>>>(item[2]);
  // There is no conversion, which would make a copy in silence.
  AnyArray array;
  if (!nb::try_cast(nb::object(item[3]), array, /*convert=*/false)) {
    Refuse(name,
           "the value is not a contiguous row-major array with DLPack or the buffer protocol; "
           "pass a contiguous copy");
  }
  // A tensor that stands for another (torch's DTensor) or that lost its storage says address 0, to which
  // its offset may have been added. Nothing is ever mapped in the first page.
  if (array.nbytes() > 0 && reinterpret_cast<uintptr_t>(array.data()) - array.byte_offset() < kPageBytes) {
    Refuse(name,
           "the array's address is null, so the array has no memory of its own; pass the wrapped array");
  }
  client::PutTensor tensor{.name = name, .dtype = ChooseDType(name, dtype, array)};
  if (shape.has_value()) {
    tensor.shape = *shape;
  } else {
    for (size_t i = 0; i < array.ndim(); ++i) tensor.shape.push_back(array.shape(i));
  }
  const int device = array.device_type();
  // The CPU reads pinned and managed memory of CUDA, too.
  if (device == kCpu || device == kCudaHost || device == kCudaManaged) {
    tensor.bytes = std::span(static_cast<const std::byte*>(array.data()), array.nbytes());
  } else if (device == kCuda) {
    tensor.device = {.device = array.device_id(), .address = reinterpret_cast<uintptr_t>(array.data())};
  } else {
    Refuse(name, "the array is neither in host memory nor on an NVIDIA GPU; move the array there");
  }
  arrays.push_back(std::move(array));
  return tensor;
}

}  // namespace

PutTensors BorrowTensors(const nb::list& tensors) {
  PutTensors borrowed;
  auto arrays = std::make_unique<std::vector<AnyArray>>();
  arrays->reserve(tensors.size());
  for (const nb::handle item : tensors) borrowed.tensors.push_back(Borrow(item, *arrays));
  // Python owns the arrays through this capsule. The call keeps it until its work has ended.
  borrowed.keeper = nb::capsule(
      arrays.release(), [](void* owned) noexcept { delete static_cast<std::vector<AnyArray>*>(owned); });
  return borrowed;
}

}  // namespace tensorcast::python
