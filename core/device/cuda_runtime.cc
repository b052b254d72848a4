// The cuda backend: the devices, their memory, and what other processes share of it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/device/cuda_context.h"
#include "core/device/cuda_stream.h"
#include "core/device/device_runtime.h"
#include "core/device/digest_kernel.h"
#include "core/device/ipc_format.h"

namespace tensorcast {
namespace {

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML and nvidia-smi write it.
std::string FormatUuid(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(std::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const std::string_view text = hex;
  return absl::StrCat("GPU-", text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

absl::StatusOr<std::vector<DeviceInfo>> EnumerateDevices() {
  int count = 0;
  TC_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "look for", "GPUs"));
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    TC_RETURN_IF_ERROR(
        CudaStatus(cudaGetDeviceProperties(&properties, i), "describe", absl::StrCat("device ", i)));
    devices.push_back({.ordinal = i,
                       .uuid = FormatUuid(properties.uuid),
                       .name = properties.name,
                       .total_bytes = properties.totalGlobalMem,
                       // CUDA does not tell the function of the device, which is 0 for a GPU. NUMA nodes and
                       // adapters are found by this address.
                       .pci_bus_id = absl::StrFormat("%04x:%02x:%02x.0", properties.pciDomainID,
                                                     properties.pciBusID, properties.pciDeviceID),
                       .runs_kernels = properties.major * 10 + properties.minor >= MinKernelCapability(),
                       .locks_read_only = properties.hostRegisterReadOnlySupported != 0});
  }
  return devices;
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(std::vector<DeviceInfo> devices) : devices_(std::move(devices)) {}

  ~CudaRuntime() override {
    // No stream is left, so nothing uses what is freed here. On a broken device it went with the context.
    absl::MutexLock lock(&imports_mutex_);
    for (const DeviceAllocation& left : shared_.allocations.RemoveAll()) {
      if (!CheckHealth(left.base.device).ok()) continue;
      const CudaDeviceGuard guard(left.base.device);
      void* const pointer = CudaPointer(left.base);
      if (left.origin == MemoryOrigin::kAllocated) {
        CudaStatus(cudaFree(pointer), "free", "device memory").IgnoreError();
        continue;
      }
      for (int& opens = opens_[left.base.address]; opens > 0; --opens) {
        CudaStatus(cudaIpcCloseMemHandle(pointer), "close", "device memory").IgnoreError();
      }
    }
  }

  std::string_view backend() const override { return "cuda"; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  absl::Status CheckHealth(int device) const override { return BrokenContexts::OfProcess().Check(device); }
  bool Reaches(int device, int other) override { return shared_.peers.Enable(device, other); }
  absl::Status MakeCurrent(int device) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    // From CUDA 12 on, cudaSetDevice makes the device's primary context current, too.
    return CudaStatus(cudaSetDevice(device), "select", absl::StrCat("device ", device));
  }

  absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    if (bytes == 0) {
      return absl::InvalidArgumentError(
          "allocate device memory: 0 bytes were asked for; ask for at least 1 byte");
    }
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    void* pointer = nullptr;
    if (const cudaError_t error = cudaMalloc(&pointer, bytes); error != cudaSuccess) {
      return CudaStatus(error, "allocate", absl::StrCat(bytes, " bytes on device ", device, DescribeFree()));
    }
    const DevicePtr base{.device = device, .address = reinterpret_cast<uint64_t>(pointer)};
    shared_.allocations.Add({.base = base, .bytes = bytes, .origin = MemoryOrigin::kAllocated});
    return base;
  }

  absl::Status Free(DevicePtr pointer) override {
    // Out of the table first: from here on no copy of this process can name it, even if cudaFree fails. Once
    // cudaFree has returned, another thread may be given the same address, and would find it in the table.
    TC_RETURN_IF_ERROR(shared_.allocations.Remove(pointer, MemoryOrigin::kAllocated).status());
    if (!CheckHealth(pointer.device).ok()) return absl::OkStatus();  // it went with its context
    const CudaDeviceGuard guard(pointer.device);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaFree(CudaPointer(pointer)), "free memory on",
                      absl::StrCat("device ", pointer.device));
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    return MakeCudaStream(device, devices_[device].runs_kernels, shared_);
  }

  absl::Status RegisterHost(std::byte* base, uint64_t bytes, HostAccess access) override {
    if (base == nullptr || bytes == 0) {
      return absl::InvalidArgumentError(
          "page-lock host memory: the address is null or the size is 0; pass an address and at least 1 byte");
    }
    const bool read_only = access == HostAccess::kReadOnly;
    if (read_only && !std::ranges::all_of(devices_, &DeviceInfo::locks_read_only)) {
      return absl::UnimplementedError(
          "page-lock host memory: at least one GPU does not support page-locked memory that is mapped only "
          "for reading; map the memory for reading and writing");
    }
    const CudaDeviceGuard guard(UsableDevice());
    TC_RETURN_IF_ERROR(guard.status());
    // Portable: page-locked for the contexts of all devices, not only the current one's. Mapped: kernels can
    // read it (Stream::Change).
    const unsigned flags =
        cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : cudaHostRegisterMapped);
    TC_RETURN_IF_ERROR(CudaStatus(cudaHostRegister(base, bytes, flags), "page-lock",
                                  absl::StrCat(bytes, " bytes of host memory")));
    shared_.locked.Add(base, bytes, access);
    return absl::OkStatus();
  }

  absl::Status UnregisterHost(std::byte* base) override {
    // Out of the table first: from here on no launch can name it, even if CUDA fails.
    shared_.locked.Remove(base);
    const CudaDeviceGuard guard(UsableDevice());
    TC_RETURN_IF_ERROR(guard.status());
    const cudaError_t error = cudaHostUnregister(base);
    // Which of the two errors comes depends on whether CUDA knows the address at all.
    const bool unknown = error == cudaErrorInvalidValue;
    return CudaStatus(unknown ? cudaErrorHostMemoryNotRegistered : error, "unregister", "host memory");
  }

  absl::StatusOr<IpcHandle> Export(DevicePtr allocation) override {
    TC_ASSIGN_OR_RETURN(const DeviceAllocation found,
                        shared_.allocations.FindBase(allocation, MemoryOrigin::kAllocated));
    TC_RETURN_IF_ERROR(CheckHealth(allocation.device));
    const CudaDeviceGuard guard(allocation.device);
    TC_RETURN_IF_ERROR(guard.status());
    cudaIpcMemHandle_t handle;
    TC_RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, CudaPointer(allocation)), "export memory of",
                                  absl::StrCat("device ", allocation.device)));
    const std::string bytes(handle.reserved, sizeof(handle.reserved));
    return IpcHandle{.device_uuid = devices_[allocation.device].uuid,
                     .opaque = EncodeCudaIpc({.process = ThisProcessToken(), .handle = bytes}),
                     .bytes = found.bytes};
  }

  absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) override {
    TC_ASSIGN_OR_RETURN(const CudaIpcFields fields, DecodeCudaIpc(handle.opaque));
    TC_ASSIGN_OR_RETURN(const int device, FindDevice(handle.device_uuid));
    TC_RETURN_IF_ERROR(CheckHealth(device));
    if (handle.bytes == 0) {
      return absl::InvalidArgumentError(
          "open device memory: the handle is for 0 bytes; get a new handle from the exporting process");
    }
    // CUDA itself would fail here, with an error that says nothing of the reason.
    if (fields.process == ThisProcessToken()) {
      return absl::FailedPreconditionError(
          "open device memory: this process exported the handle itself; use the allocation's own pointer");
    }
    // Held across the calls to CUDA: an open and a close of one handle at the same time would otherwise
    // disagree on whether the memory is mapped.
    absl::MutexLock lock(&imports_mutex_);
    TC_ASSIGN_OR_RETURN(const DevicePtr base, Map(device, fields));
    if (++opens_[base.address] == 1) {
      shared_.allocations.Add({.base = base, .bytes = handle.bytes, .origin = MemoryOrigin::kImported});
    }
    return base;
  }

  absl::Status CloseIpc(DevicePtr pointer) override {
    absl::MutexLock lock(&imports_mutex_);
    TC_RETURN_IF_ERROR(shared_.allocations.FindBase(pointer, MemoryOrigin::kImported).status());
    // The table forgets it before CUDA is asked: from here on no copy of this process can name it, even if
    // closing fails.
    if (--opens_[pointer.address] == 0) {
      opens_.erase(pointer.address);
      TC_RETURN_IF_ERROR(shared_.allocations.Remove(pointer, MemoryOrigin::kImported).status());
    }
    if (!CheckHealth(pointer.device).ok()) return absl::OkStatus();  // it was unmapped with its context
    const CudaDeviceGuard guard(pointer.device);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaIpcCloseMemHandle(CudaPointer(pointer)), "close memory of",
                      absl::StrCat("device ", pointer.device));
  }

 private:
  absl::Status CheckDevice(int device) const {
    if (device >= 0 && device < static_cast<int>(devices_.size())) return CheckHealth(device);
    return absl::InvalidArgumentError(absl::StrCat("use device ", device, ": this process sees ",
                                                   devices_.size(),
                                                   " devices, numbered from 0; name one of those"));
  }

  // A device for calls that concern all devices; the first one where none is healthy.
  int UsableDevice() const {
    for (const DeviceInfo& device : devices_) {
      if (CheckHealth(device.ordinal).ok()) return device.ordinal;
    }
    return 0;
  }

  // Free and total memory of the current device, for the message of a failed allocation.
  static std::string DescribeFree() {
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      return "";
    }
    return absl::StrCat(" (", free, " of ", total, " bytes are free)");
  }

  static absl::StatusOr<DevicePtr> Map(int device, const CudaIpcFields& fields) {
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    cudaIpcMemHandle_t handle;
    std::memcpy(handle.reserved, fields.handle.data(), sizeof(handle.reserved));
    void* pointer = nullptr;
    // The flag is the only one that CUDA takes here.
    TC_RETURN_IF_ERROR(CudaStatus(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess),
                                  "open another process's memory of", absl::StrCat("device ", device)));
    return DevicePtr{.device = device, .address = reinterpret_cast<uint64_t>(pointer)};
  }

  const std::vector<DeviceInfo> devices_;
  StreamsShare shared_;
  // CUDA maps another process's memory once, gives the same address to each further open, and counts them:
  // so does this, by that address, since it is one allocation to the table.
  absl::Mutex imports_mutex_;
  std::map<uint64_t, int> opens_ ABSL_GUARDED_BY(imports_mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime() {
  TC_ASSIGN_OR_RETURN(std::vector<DeviceInfo> devices, EnumerateDevices());
  if (devices.empty()) return CudaStatus(cudaErrorNoDevice, "look for", "GPUs");
  return std::make_unique<CudaRuntime>(std::move(devices));
}

}  // namespace tensorcast
