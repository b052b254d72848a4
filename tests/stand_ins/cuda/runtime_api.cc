// A stand-in for the CUDA runtime: the functions that the product calls, on a host without a GPU. The real
// header is included, so the compiler compares every signature with the real one.
//
// It does what CUDA's documentation promises and no more, and is stricter where hardware might accept a
// mistake. A call that a correct program never makes ends the process with a message (Violation): for example
// a call while the wrong device is current, memory used or freed while a copy may still run on it, or two
// streams that use the same bytes in no defined order. Copies to and from ordinary host memory are
// asynchronous here too, which CUDA allows and seldom does.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/stand_ins/cuda/host_gpus.h"
#include "tests/stand_ins/cuda/runtime.h"

namespace {

using tensorcast::stand_ins::Runtime;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// A call as CUDA makes it: initialises, refuses where nothing works any more, and remembers its error.
template <typename Body>
cudaError_t Call(Body body) {
  Runtime* const runtime = Runtime::Get();
  if (runtime == nullptr) return Remember(cudaErrorNoDevice);
  if (const cudaError_t error = runtime->Check(); error != cudaSuccess) return Remember(error);
  return Remember(body(*runtime));
}

// One that waits for what runs: also on a broken device nothing moves any more once it says so.
template <typename Body>
cudaError_t CallThatWaits(Body body) {
  Runtime* const runtime = Runtime::Get();
  if (runtime == nullptr) return Remember(cudaErrorNoDevice);
  const cudaError_t error = runtime->Check();
  if (error != cudaSuccess && error != cudaErrorIllegalAddress) return Remember(error);
  const cudaError_t done = body(*runtime);
  return Remember(error == cudaSuccess ? done : error);
}

// The program's kernels: what it launches one by (the address of its stub), and the name. Made before main.
std::map<const void*, std::string>& Kernels() {
  static auto* const kernels = new std::map<const void*, std::string>;
  return *kernels;
}

[[noreturn]] void LaunchedByItsStub() {
  tensorcast::stand_ins::Violation("cuda",
                                   "a kernel is launched with <<<...>>>, which hides its errors: "
                                   "call cudaLaunchKernel");
}

}  // namespace

extern "C" {

// --- What nvcc's objects call, of which no header tells: they say at the start of the program which kernels
// they have, and the stubs that they make of kernels launch these.

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  Kernels()[stub] = name;
}
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { LaunchedByItsStub(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { LaunchedByItsStub(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  LaunchedByItsStub();
}

// --- The runtime's functions.

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** parameters, size_t,
                             cudaStream_t stream) {
  return Call([=](Runtime& runtime) {
    const auto found = Kernels().find(kernel);
    if (found == Kernels().end()) return cudaErrorInvalidDeviceFunction;
    return runtime.LaunchKernel(found->second, parameters, static_cast<int>(blocks.x),
                                static_cast<int>(threads.x), stream);
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return Call([=](Runtime& runtime) {
    if (device < 0 || peer < 0 || std::max(device, peer) >= runtime.count()) return cudaErrorInvalidDevice;
    *can = device != peer && runtime.has_peers() ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return Call(
      [=](Runtime& runtime) { return flags == 0 ? runtime.EnablePeerAccess(peer) : cudaErrorInvalidValue; });
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorMapBufferObjectFailed:
      return "cudaErrorMapBufferObjectFailed";
    default:
      return "another error";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "as said by the stand-in for the CUDA runtime";
}

cudaError_t cudaGetDeviceCount(int* count) {
  return Call([=](Runtime& runtime) {
    *count = runtime.count();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call([=](Runtime& runtime) { return runtime.Properties(properties, device); });
}

cudaError_t cudaGetDevice(int* device) {
  return Call([=](Runtime&) {
    *device = tensorcast::stand_ins::CurrentGpu();
    return cudaSuccess;
  });
}

// Not refused where the current device is broken: another may be good.
cudaError_t cudaSetDevice(int device) {
  Runtime* const runtime = Runtime::Get();
  if (runtime == nullptr) return Remember(cudaErrorNoDevice);
  if (device < 0 || device >= runtime->count()) return Remember(cudaErrorInvalidDevice);
  tensorcast::stand_ins::CurrentGpu() = device;
  return Remember(runtime->Check());
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call([=](Runtime& runtime) { return runtime.MemoryInfo(free, total); });
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Call([=](Runtime& runtime) { return runtime.Allocate(pointer, bytes); });
}

cudaError_t cudaFree(void* pointer) {
  return Call([=](Runtime& runtime) { return runtime.Free(pointer); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return Call([=](Runtime& runtime) { return runtime.PointerAttributes(attributes, pointer); });
}

cudaError_t cudaHostRegister(void* base, size_t bytes, unsigned int flags) {
  return Call([=](Runtime& runtime) { return runtime.RegisterHost(base, bytes, flags); });
}

cudaError_t cudaHostUnregister(void* base) {
  return Call([=](Runtime& runtime) { return runtime.UnregisterHost(base); });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return Call([=](Runtime& runtime) { return runtime.HostGetDevicePointer(device, host, flags); });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return Call([=](Runtime& runtime) { return runtime.GetHandle(handle, pointer); });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  return Call([=](Runtime& runtime) { return runtime.OpenHandle(pointer, handle, flags); });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return Call([=](Runtime& runtime) { return runtime.CloseHandle(pointer); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) {
    tensorcast::stand_ins::Violation("cuda", "a stream that waits for the default stream is made");
  }
  return Call([=](Runtime& runtime) { return runtime.CreateStream(stream); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call([=](Runtime& runtime) { return runtime.DestroyStream(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return CallThatWaits([=](Runtime& runtime) { return runtime.SynchronizeStream(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call([=](Runtime& runtime) { return runtime.QueryStream(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return Call([=](Runtime& runtime) { return runtime.StreamWaitsForEvent(stream, event); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return Call([=](Runtime& runtime) { return runtime.CreateEvent(event); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([=](Runtime& runtime) { return runtime.DestroyEvent(event); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call([=](Runtime& runtime) { return runtime.RecordEvent(event, stream); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return CallThatWaits([=](Runtime& runtime) { return runtime.SynchronizeEvent(event); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([=](Runtime& runtime) { return runtime.QueryEvent(event); });
}

cudaError_t tensorcast_stand_in_enqueue(void* memory, size_t bytes, bool write, cudaStream_t stream,
                                        tensorcast::stand_ins::StreamWork work) {
  return Call(
      [&](Runtime& runtime) { return runtime.EnqueueWork(memory, bytes, write, stream, std::move(work)); });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call(
      [=](Runtime& runtime) { return runtime.EnqueueCopy(destination, source, bytes, kind, stream); });
}

}  // extern "C"
