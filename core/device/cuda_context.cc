#include "core/device/cuda_context.h"

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

// The code is for callers, which act on it; the advice ends the message.
struct Meaning {
  absl::StatusCode code;
  std::string_view advice;
};

// Whether the device's context is unusable after this error: every later call that needs it fails. These are
// the errors that CUDA calls sticky: the process has to end before the device works again.
bool BreaksContext(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
      return true;
    default:
      return false;
  }
}

Meaning MeaningOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return {absl::StatusCode::kResourceExhausted, "free memory on the device, or use another device"};
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidResourceHandle:
      return {absl::StatusCode::kInvalidArgument, "check the address, size, device or handle"};
    case cudaErrorNoDevice:
      return {absl::StatusCode::kUnavailable, "make a GPU visible to this process (CUDA_VISIBLE_DEVICES)"};
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
    // cudaIpcOpenMemHandle returns this when the exporter has ended or has freed the memory.
    case cudaErrorMapBufferObjectFailed:
      return {absl::StatusCode::kNotFound,
              "get a new handle, because the exporting process ended or freed the memory"};
    case cudaErrorHostMemoryAlreadyRegistered:
      return {absl::StatusCode::kAlreadyExists, "register host memory once"};
    case cudaErrorHostMemoryNotRegistered:
      return {absl::StatusCode::kNotFound, "register the host memory first"};
    case cudaErrorNotPermitted:
      return {absl::StatusCode::kPermissionDenied,
              "check the privileges of the process and its limit of locked memory (`ulimit -l`)"};
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
      return {absl::StatusCode::kUnimplemented,
              "use another device: this device or platform does not support the call"};
    case cudaErrorTimeout:
      return {absl::StatusCode::kDeadlineExceeded, "try again"};
    default:
      if (BreaksContext(error)) {
        return {absl::StatusCode::kInternal,
                "use another device, or start this process again; replace the device if nvidia-smi or the "
                "kernel's log (Xid) shows a fault of the hardware"};
      }
      return {absl::StatusCode::kInternal, "check the device's state with nvidia-smi"};
  }
}

// The device of the innermost CudaDeviceGuard of the thread; -1: none.
thread_local int guarded_device = -1;

}  // namespace

BrokenContexts& BrokenContexts::OfProcess() {
  static auto* const contexts = new BrokenContexts;
  return *contexts;
}

void BrokenContexts::Add(int device, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  const auto [broken, is_new] = broken_.try_emplace(device, why);
  if (is_new) LOG(ERROR) << "use device " << device << ": the device is unhealthy from now on: " << why;
}

absl::Status BrokenContexts::Check(int device) const {
  absl::MutexLock lock(&mutex_);
  const auto broken = broken_.find(device);
  return broken == broken_.end() ? absl::OkStatus() : broken->second;
}

absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const Meaning meaning = MeaningOf(error);
  absl::Status status(meaning.code, absl::StrCat(operation, " ", subject, ": ", cudaGetErrorName(error), " (",
                                                 cudaGetErrorString(error), "); ", meaning.advice));
  // CUDA does not say which device an error is of; the guard of this thread does.
  if (BreaksContext(error) && guarded_device >= 0) BrokenContexts::OfProcess().Add(guarded_device, status);
  return status;
}

CudaDeviceGuard::CudaDeviceGuard(int device) : outer_(guarded_device) {
  // First, so that an error of cudaSetDevice is noted for this device.
  guarded_device = device;
  // The thread's current device is asked for, so that the destructor can return to it. An error here is that
  // of the current device, which may be broken and is not the wanted one: then there is none to return to.
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess) {
    cudaGetLastError();
    current = -1;
  }
  if (current == device) return;
  status_ = CudaStatus(cudaSetDevice(device), "select", absl::StrCat("device ", device));
  if (status_.ok()) previous_ = current;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  // The outer guard's device is the current one again, also for errors that are noted from here on.
  guarded_device = outer_;
  if (previous_ >= 0) CudaStatus(cudaSetDevice(previous_), "select", "the previous device").IgnoreError();
}

}  // namespace tensorcast
