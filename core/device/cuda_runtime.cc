// The cuda backend: its error codes as statuses, streams, and the runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/device/allocation_table.h"
#include "core/device/device_runtime.h"
#include "core/device/digest_kernel.h"
#include "core/device/ipc_format.h"

namespace tensorcast {
namespace {

struct Meaning {
  absl::StatusCode code;
  std::string_view advice;
};

// Whether the device's context is unusable after it: every later call that needs it fails, for this process.
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
    // What cudaIpcOpenMemHandle says when the exporter has ended or has freed the memory.
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
      if (BreaksContext(error)) {
        return {
            absl::StatusCode::kInternal,
            "use another device; this one works again when the process is started again, if nvidia-smi and "
            "the kernel's log (Xid) show no fault of the hardware"};
      }
      return {absl::StatusCode::kInternal, "check the device's state with nvidia-smi"};
  }
}

// Which devices are broken for this process. A device has one context in a process (its primary one), whoever
// uses it, and so this is the process's too. Thread-safe.
class BrokenContexts {
 public:
  static BrokenContexts& OfProcess() {
    static auto* const contexts = new BrokenContexts;
    return *contexts;
  }

  // The first reason stays: what comes later follows from it.
  void Add(int device, const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    const auto [broken, is_new] = broken_.try_emplace(device, why);
    if (is_new) LOG(ERROR) << "device " << device << " is unhealthy from here on: " << why;
  }
  absl::Status Check(int device) const {
    absl::MutexLock lock(&mutex_);
    const auto broken = broken_.find(device);
    return broken == broken_.end() ? absl::OkStatus() : broken->second;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<int, absl::Status> broken_ ABSL_GUARDED_BY(mutex_);
};

// Of the innermost CudaDeviceGuard of the thread; -1: none.
thread_local int guarded_device = -1;

// OK, or "<operation> <subject>: <CUDA's name and text>; <what to do>". Takes the error out of the thread's
// record, where it would be reported again by the next call that fails or asks. One that broke the device's
// context cannot be cleared: it marks the device of the guard.
absl::Status CudaStatus(cudaError_t error, std::string_view operation, std::string_view subject) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const Meaning meaning = MeaningOf(error);
  absl::Status status(meaning.code, absl::StrCat(operation, " ", subject, ": ", cudaGetErrorName(error), " (",
                                                 cudaGetErrorString(error), "); ", meaning.advice));
  if (BreaksContext(error) && guarded_device >= 0) BrokenContexts::OfProcess().Add(guarded_device, status);
  return status;
}

// A device address as CUDA takes it.
inline void* CudaPointer(DevicePtr pointer) {
  // The host never reads through it, so the optimizer loses nothing by not knowing where it points.
  return reinterpret_cast<void*>(pointer.address);  // NOLINT(performance-no-int-to-ptr)
}

// Makes `device` the thread's current one while it lives. Touching CUDA without one would bring up device 0's
// context in threads that have nothing to do with device 0.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const int outer_ = guarded_device;
  int previous_ = -1;
  absl::Status status_;
};

CudaDeviceGuard::CudaDeviceGuard(int device) {
  guarded_device = device;
  // An error here is that of the current device, which may be broken and is not the one that is wanted: there
  // is none to return to then.
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess) {
    cudaGetLastError();
    current = -1;
  }
  if (current == device) return;
  status_ = CudaStatus(cudaSetDevice(device), "selecting", absl::StrCat("device ", device));
  if (status_.ok()) previous_ = current;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  guarded_device = outer_;
  if (previous_ >= 0) CudaStatus(cudaSetDevice(previous_), "selecting", "the previous device").IgnoreError();
}

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override {
    const CudaDeviceGuard guard(device_);
    CudaStatus(cudaEventDestroy(event_), "destroying", "an event").IgnoreError();
  }

  absl::Status Await() override {
    const CudaDeviceGuard guard(device_);  // its error is no reason not to wait for what may run yet
    return CudaStatus(cudaEventSynchronize(event_), "copying on", absl::StrCat("device ", device_));
  }

 private:
  const int device_;
  const cudaEvent_t event_;
};

// Which devices reach each other's memory. Thread-safe.
class PeerAccess {
 public:
  // Whether what runs on `device` reaches memory of `other`, after the first call says so to CUDA. Where it
  // does not, copies between them go through the host, by CUDA itself.
  bool Enable(int device, int other) {
    if (device == other) return true;
    absl::MutexLock lock(&mutex_);
    const auto [asked, first] = asked_.try_emplace({device, other}, false);
    if (!first) return asked->second;
    const absl::Status enabled = EnableFirst(device, other);
    LOG_IF(WARNING, !enabled.ok()) << "copies between devices " << device << " and " << other
                                   << " go through the host: " << enabled;
    return asked->second = enabled.ok();
  }

 private:
  static absl::Status EnableFirst(int device, int other) {
    int can = 0;
    const std::string which = absl::StrCat("peer access of device ", device, " to device ", other);
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    TC_RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, device, other), "asking for", which));
    if (can == 0) return absl::UnimplementedError("they are no peers");
    const cudaError_t error = cudaDeviceEnablePeerAccess(other, /*flags=*/0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // by another library of this process; not to be found by the next who asks
      return absl::OkStatus();
    }
    return CudaStatus(error, "enabling", which);
  }

  absl::Mutex mutex_;
  std::map<std::pair<int, int>, bool> asked_ ABSL_GUARDED_BY(mutex_);
};

// Device memory for the digests of one batch, lent to streams. It is kept to the end: cudaFree would wait for
// everything that runs on the device. Thread-safe.
class DigestBuffers {
 public:
  ~DigestBuffers() {
    absl::MutexLock lock(&mutex_);
    for (const DevicePtr buffer : all_) {
      if (!BrokenContexts::OfProcess().Check(buffer.device).ok()) continue;  // it went with its context
      const CudaDeviceGuard guard(buffer.device);
      CudaStatus(cudaFree(CudaPointer(buffer)), "freeing", "room for digests").IgnoreError();
    }
  }

  absl::StatusOr<DevicePtr> Take(int device) {
    absl::MutexLock lock(&mutex_);
    std::vector<DevicePtr>& idle = idle_[device];
    if (idle.empty()) {
      const CudaDeviceGuard guard(device);
      TC_RETURN_IF_ERROR(guard.status());
      void* pointer = nullptr;
      TC_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&pointer, kMostDigestsAtOnce * xxh3::kDigestBytes),
                                    "allocating", absl::StrCat("room for digests on device ", device)));
      idle.push_back({.device = device, .address = reinterpret_cast<uint64_t>(pointer)});
      all_.push_back(idle.back());
    }
    const DevicePtr taken = idle.back();
    idle.pop_back();
    return taken;
  }

  // REQUIRES: nothing that runs uses it any more.
  void Give(DevicePtr buffer) {
    absl::MutexLock lock(&mutex_);
    idle_[buffer.device].push_back(buffer);
  }

 private:
  absl::Mutex mutex_;
  std::map<int, std::vector<DevicePtr>> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<DevicePtr> all_ ABSL_GUARDED_BY(mutex_);
};

// What the streams of a runtime share, and must not outlive.
struct StreamsShare {
  AllocationTable allocations;
  PeerAccess peers;
  DigestBuffers digest_buffers;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream, bool can_digest, StreamsShare& shared)
      : device_(device), stream_(stream), can_digest_(can_digest), shared_(shared) {}

  ~CudaStream() override {
    // Copies that are under way read and write memory that its owner may free after this.
    const absl::Status status = Synchronize();
    if (!BrokenContexts::OfProcess().Check(device_).ok()) return;  // the stream ended with its context
    LOG_IF(WARNING, !status.ok()) << "unread error: " << status;
    if (digests_) shared_.digest_buffers.Give(digests_);
    const CudaDeviceGuard guard(device_);
    CudaStatus(cudaStreamDestroy(stream_), "destroying", "a stream").IgnoreError();
  }

  absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(shared_.allocations.Find(destination, bytes).status());
    return Enqueue(CudaPointer(destination), source, bytes, cudaMemcpyHostToDevice);
  }

  absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(shared_.allocations.Find(source, bytes).status());
    return Enqueue(destination, CudaPointer(source), bytes, cudaMemcpyDeviceToHost);
  }

  absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(shared_.allocations.Find(destination, bytes).status());
    TC_RETURN_IF_ERROR(shared_.allocations.Find(source, bytes).status());
    shared_.peers.Enable(device_, destination.device);
    shared_.peers.Enable(device_, source.device);
    return Enqueue(CudaPointer(destination), CudaPointer(source), bytes, cudaMemcpyDeviceToDevice);
  }

  absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) override {
    TC_RETURN_IF_ERROR(CheckDigests(device_, ranges, digests));
    for (const DeviceRange& range : ranges) {
      TC_RETURN_IF_ERROR(shared_.allocations.Find(range.begin, range.bytes).status());
    }
    if (!can_digest_) {
      return absl::UnimplementedError(
          absl::StrCat("no digest kernel for device ", device_,
                       " was built: install nvcc, configure and build again, or use a newer device"));
    }
    if (!digests_) {
      TC_ASSIGN_OR_RETURN(digests_, shared_.digest_buffers.Take(device_));
    }
    // One batch after another uses the buffer: they are in order.
    while (!ranges.empty()) {
      const size_t count = std::min<size_t>(ranges.size(), kMostDigestsAtOnce);
      TC_RETURN_IF_ERROR(DigestBatchOf(ranges.first(count), digests.data()));
      ranges = ranges.subspan(count);
      digests = digests.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize() override {
    const CudaDeviceGuard guard(device_);  // as for an event
    return CudaStatus(cudaStreamSynchronize(stream_), "copying on", absl::StrCat("device ", device_));
  }

  absl::StatusOr<bool> IsIdle() override {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaErrorNotReady) return false;  // no error, and none that the thread remembers
    TC_RETURN_IF_ERROR(CudaStatus(error, "copying on", absl::StrCat("device ", device_)));
    return true;
  }

  absl::Status Lend(DevicePtr memory, uint64_t bytes,
                    absl::FunctionRef<absl::Status(void* stream)> use) override {
    if (bytes > 0) TC_RETURN_IF_ERROR(shared_.allocations.Find(memory, bytes).status());
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    return use(stream_);
  }

  absl::StatusOr<std::unique_ptr<Event>> Record() override {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    const std::string subject = absl::StrCat("an event on device ", device_);
    cudaEvent_t event = nullptr;
    // Blocking: who waits for a copy sleeps, where CUDA would spin.
    TC_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                   "creating", subject));
    auto recorded = std::make_unique<CudaEvent>(device_, event);
    TC_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream_), "recording", subject));
    return recorded;
  }

 private:
  absl::Status Enqueue(void* destination, const void* source, uint64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return absl::OkStatus();
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaMemcpyAsync(destination, source, bytes, kind, stream_), "enqueueing",
                      absl::StrCat("a copy of ", bytes, " bytes on device ", device_));
  }

  // REQUIRES: kMostDigestsAtOnce at most.
  absl::Status DigestBatchOf(std::span<const DeviceRange> ranges, DigestBytes* digests) {
    static_assert(sizeof(DigestBytes) == xxh3::kDigestBytes);
    DigestBatch batch;
    for (size_t i = 0; i < ranges.size(); ++i) {
      batch.ranges[i] = {.address = ranges[i].begin.address, .bytes = ranges[i].bytes};
    }
    batch.digests = digests_.address;
    {
      const CudaDeviceGuard guard(device_);
      TC_RETURN_IF_ERROR(guard.status());
      void* parameters[] = {&batch};
      const cudaError_t launched =
          cudaLaunchKernel(DigestKernel(), dim3(static_cast<unsigned>(ranges.size())), dim3(xxh3::kLanes),
                           parameters, /*sharedMem=*/0, stream_);
      TC_RETURN_IF_ERROR(
          CudaStatus(launched, "enqueueing", absl::StrCat(ranges.size(), " digests on device ", device_)));
    }
    return Enqueue(digests, CudaPointer(digests_), ranges.size() * sizeof(DigestBytes),
                   cudaMemcpyDeviceToHost);
  }

  const int device_;
  const cudaStream_t stream_;
  const bool can_digest_;
  StreamsShare& shared_;
  DevicePtr digests_;  // where the kernel writes; none until it is needed
};

// `shared` must outlive the stream.
absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, bool can_digest, StreamsShare& shared) {
  const CudaDeviceGuard guard(device);
  TC_RETURN_IF_ERROR(guard.status());
  cudaStream_t stream = nullptr;
  // Non-blocking: an ordinary stream would wait for the legacy default stream, which a program that links us
  // may use.
  TC_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                "creating a stream on", absl::StrCat("device ", device)));
  return std::make_unique<CudaStream>(device, stream, can_digest, shared);
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML and nvidia-smi write it.
std::string FormatUuid(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(std::string_view(uuid.bytes, sizeof(uuid.bytes)));
  const std::string_view text = hex;
  return absl::StrCat("GPU-", text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

absl::StatusOr<std::vector<DeviceInfo>> EnumerateDevices() {
  int count = 0;
  TC_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for", "GPUs"));
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    TC_RETURN_IF_ERROR(
        CudaStatus(cudaGetDeviceProperties(&properties, i), "describing", absl::StrCat("device ", i)));
    devices.push_back({.ordinal = i,
                       .uuid = FormatUuid(properties.uuid),
                       .name = properties.name,
                       .total_bytes = properties.totalGlobalMem,
                       .pci_bus_id = absl::StrFormat("%04x:%02x:%02x.0", properties.pciDomainID,
                                                     properties.pciBusID, properties.pciDeviceID),
                       .can_digest = properties.major * 10 + properties.minor >= LeastDigestCapability()});
  }
  return devices;
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(std::vector<DeviceInfo> devices) : devices_(std::move(devices)) {}

  ~CudaRuntime() override {
    absl::MutexLock lock(&imports_mutex_);
    for (const DeviceAllocation& left : shared_.allocations.RemoveAll()) {
      if (!CheckHealth(left.base.device).ok()) continue;
      const CudaDeviceGuard guard(left.base.device);
      void* const pointer = CudaPointer(left.base);
      if (left.origin == MemoryOrigin::kAllocated) {
        CudaStatus(cudaFree(pointer), "freeing", "device memory").IgnoreError();
        continue;
      }
      for (int& opens = opens_[left.base.address]; opens > 0; --opens) {
        CudaStatus(cudaIpcCloseMemHandle(pointer), "closing", "device memory").IgnoreError();
      }
    }
  }

  std::string_view backend() const override { return "cuda"; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  absl::Status CheckHealth(int device) const override { return BrokenContexts::OfProcess().Check(device); }
  bool Reaches(int device, int other) override { return shared_.peers.Enable(device, other); }

  absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    if (bytes == 0) return absl::InvalidArgumentError("a device allocation of 0 bytes");
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    void* pointer = nullptr;
    if (const cudaError_t error = cudaMalloc(&pointer, bytes); error != cudaSuccess) {
      return CudaStatus(error, "allocating",
                        absl::StrCat(bytes, " bytes on device ", device, DescribeFree()));
    }
    const DevicePtr base{.device = device, .address = reinterpret_cast<uint64_t>(pointer)};
    shared_.allocations.Add({.base = base, .bytes = bytes, .origin = MemoryOrigin::kAllocated});
    return base;
  }

  absl::Status Free(DevicePtr pointer) override {
    // Out of the table first: from here on no copy of ours can name it, whatever becomes of cudaFree. And
    // once cudaFree has returned, another thread may be given the same address.
    TC_RETURN_IF_ERROR(shared_.allocations.Remove(pointer, MemoryOrigin::kAllocated).status());
    if (!CheckHealth(pointer.device).ok()) return absl::OkStatus();  // it went with its context
    const CudaDeviceGuard guard(pointer.device);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaFree(CudaPointer(pointer)), "freeing memory on",
                      absl::StrCat("device ", pointer.device));
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    return MakeCudaStream(device, devices_[device].can_digest, shared_);
  }

  absl::Status RegisterHost(std::byte* base, uint64_t bytes) override {
    if (base == nullptr || bytes == 0) return absl::InvalidArgumentError("registering no host memory");
    const CudaDeviceGuard guard(UsableDevice());
    TC_RETURN_IF_ERROR(guard.status());
    // Portable: page-locked for the contexts of all devices, not only the current one's.
    return CudaStatus(cudaHostRegister(base, bytes, cudaHostRegisterPortable), "page-locking",
                      absl::StrCat(bytes, " bytes of host memory"));
  }

  absl::Status UnregisterHost(std::byte* base) override {
    const CudaDeviceGuard guard(UsableDevice());
    TC_RETURN_IF_ERROR(guard.status());
    const cudaError_t error = cudaHostUnregister(base);
    // Which of the two comes depends on whether CUDA knows the address at all.
    const bool unknown = error == cudaErrorInvalidValue;
    return CudaStatus(unknown ? cudaErrorHostMemoryNotRegistered : error, "unregistering", "host memory");
  }

  absl::StatusOr<IpcHandle> Export(DevicePtr allocation) override {
    TC_ASSIGN_OR_RETURN(const DeviceAllocation found,
                        shared_.allocations.FindBase(allocation, MemoryOrigin::kAllocated));
    TC_RETURN_IF_ERROR(CheckHealth(allocation.device));
    const CudaDeviceGuard guard(allocation.device);
    TC_RETURN_IF_ERROR(guard.status());
    cudaIpcMemHandle_t handle;
    TC_RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&handle, CudaPointer(allocation)),
                                  "exporting memory of", absl::StrCat("device ", allocation.device)));
    const std::string bytes(handle.reserved, sizeof(handle.reserved));
    return IpcHandle{.device_uuid = devices_[allocation.device].uuid,
                     .opaque = EncodeCudaIpc({.process = ThisProcessToken(), .handle = bytes}),
                     .bytes = found.bytes};
  }

  absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) override {
    TC_ASSIGN_OR_RETURN(const CudaIpcFields fields, DecodeCudaIpc(handle.opaque));
    TC_ASSIGN_OR_RETURN(const int device, FindDevice(handle.device_uuid));
    TC_RETURN_IF_ERROR(CheckHealth(device));
    if (handle.bytes == 0) return absl::InvalidArgumentError("a device memory handle of 0 bytes");
    // CUDA itself would fail here, with an error that says nothing of the reason.
    if (fields.process == ThisProcessToken()) {
      return absl::FailedPreconditionError(
          "this process exported the handle itself: use the allocation's own pointer");
    }
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
    if (--opens_[pointer.address] == 0) {
      opens_.erase(pointer.address);
      TC_RETURN_IF_ERROR(shared_.allocations.Remove(pointer, MemoryOrigin::kImported).status());
    }
    if (!CheckHealth(pointer.device).ok()) return absl::OkStatus();  // it was unmapped with its context
    const CudaDeviceGuard guard(pointer.device);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaIpcCloseMemHandle(CudaPointer(pointer)), "closing memory of",
                      absl::StrCat("device ", pointer.device));
  }

 private:
  absl::Status CheckDevice(int device) const {
    if (device >= 0 && device < static_cast<int>(devices_.size())) return CheckHealth(device);
    return absl::InvalidArgumentError(absl::StrCat("no device ", device, ": there are ", devices_.size()));
  }

  // For what concerns all devices and takes any; the first where none is good.
  int UsableDevice() const {
    for (const DeviceInfo& device : devices_) {
      if (CheckHealth(device.ordinal).ok()) return device.ordinal;
    }
    return 0;
  }

  // For the message of a failed allocation; of the current device.
  static std::string DescribeFree() {
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      return "";
    }
    return absl::StrCat(" (free ", free, " of ", total, ")");
  }

  static absl::StatusOr<DevicePtr> Map(int device, const CudaIpcFields& fields) {
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    cudaIpcMemHandle_t handle;
    std::memcpy(handle.reserved, fields.handle.data(), sizeof(handle.reserved));
    void* pointer = nullptr;
    TC_RETURN_IF_ERROR(CudaStatus(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess),
                                  "opening another process's memory of", absl::StrCat("device ", device)));
    return DevicePtr{.device = device, .address = reinterpret_cast<uint64_t>(pointer)};
  }

  const std::vector<DeviceInfo> devices_;
  StreamsShare shared_;
  // CUDA maps another process's memory once, gives the same address to those who open it again, and counts:
  // so does this, by that address, since it is one allocation to the table.
  absl::Mutex imports_mutex_;
  std::map<uint64_t, int> opens_ ABSL_GUARDED_BY(imports_mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime() {
  TC_ASSIGN_OR_RETURN(std::vector<DeviceInfo> devices, EnumerateDevices());
  if (devices.empty()) return CudaStatus(cudaErrorNoDevice, "looking for", "GPUs");
  return std::make_unique<CudaRuntime>(std::move(devices));
}

}  // namespace tensorcast
