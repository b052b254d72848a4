#include "core/device/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

struct Meaning {
  absl::StatusCode code;
  std::string_view advice;
};

Meaning MeaningOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return {absl::StatusCode::kResourceExhausted, "free memory on the device or use another"};
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidResourceHandle:
      return {absl::StatusCode::kInvalidArgument, "check the address, size, device or handle"};
    case cudaErrorNoDevice:
      return {absl::StatusCode::kUnavailable, "no GPU is visible to this process: see CUDA_VISIBLE_DEVICES"};
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return {absl::StatusCode::kUnavailable,
              "install an NVIDIA driver that is recent enough for this CUDA version"};
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorCudartUnloading:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
      return {absl::StatusCode::kUnavailable, "check the driver's and the device's state with nvidia-smi"};
    case cudaErrorMapBufferObjectFailed:
      return {absl::StatusCode::kNotFound, "the exporter is gone or freed the memory: ask it again"};
    case cudaErrorHostMemoryAlreadyRegistered:
      return {absl::StatusCode::kAlreadyExists, "register host memory once"};
    case cudaErrorHostMemoryNotRegistered:
      return {absl::StatusCode::kNotFound, "register the host memory first"};
    case cudaErrorNotPermitted:
      return {absl::StatusCode::kPermissionDenied, "check the process's privileges and memory lock limit"};
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
      return {absl::StatusCode::kUnimplemented, "this device or platform cannot do it"};
    case cudaErrorTimeout:
      return {absl::StatusCode::kDeadlineExceeded, "try again"};
    default:
      return {absl::StatusCode::kInternal,
              "the device may be unusable for this process from here on: restart it"};
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const Meaning meaning = MeaningOf(error);
  return absl::Status(meaning.code, absl::StrCat(operation, " ", subject, ": ", cudaGetErrorName(error), " (",
                                                 cudaGetErrorString(error), "); ", meaning.advice));
}

}  // namespace tensorcast
