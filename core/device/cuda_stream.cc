#include "core/device/cuda_stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/change_kernel.h"
#include "core/device/cuda_context.h"
#include "core/device/digest_kernel.h"

namespace tensorcast {
namespace {

absl::Status EnablePeer(int device, int other) {
  int can = 0;
  const std::string which = absl::StrCat("peer access of device ", device, " to device ", other);
  const CudaDeviceGuard guard(device);
  TC_RETURN_IF_ERROR(guard.status());
  TC_RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, device, other), "check", which));
  if (can == 0) {
    return absl::UnimplementedError(absl::StrCat(
        "enable ", which, ": the hardware does not connect the two devices; copy through host memory"));
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, /*flags=*/0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // by another library of this process; the next caller must not find it
    return absl::OkStatus();
  }
  return CudaStatus(error, "enable", which);
}

// Whether the address is in any allocation on its device, as CUDA knows it.
bool IsDeviceMemory(DevicePtr pointer) {
  const CudaDeviceGuard guard(pointer.device);
  if (!guard.status().ok()) return false;
  cudaPointerAttributes attributes;
  const absl::Status asked = CudaStatus(cudaPointerGetAttributes(&attributes, CudaPointer(pointer)),
                                        "ask about", "a device address");
  return asked.ok() && attributes.type == cudaMemoryTypeDevice && attributes.device == pointer.device;
}

// Page-locked host memory as the current device addresses it. For one launch: its lists mostly lie in one
// range, so that CUDA is asked once.
class HostAsSeen {
 public:
  explicit HostAsSeen(const LockedHostTable& locked) : locked_(locked) {}

  absl::StatusOr<const std::byte*> Find(const void* host) {
    const auto* const at = static_cast<const std::byte*>(host);
    if (at < range_.data() || at >= range_.data() + range_.size()) {
      range_ = locked_.Find(host, /*bytes=*/1);
      void* seen = nullptr;
      TC_RETURN_IF_ERROR(CudaStatus(cudaHostGetDevicePointer(&seen, range_.data(), /*flags=*/0), "find",
                                    "the device's address of page-locked host memory"));
      seen_ = static_cast<const std::byte*>(seen);
    }
    return seen_ + (at - range_.data());
  }

 private:
  const LockedHostTable& locked_;
  std::span<std::byte> range_;
  const std::byte* seen_ = nullptr;  // the device's address of `range_`
};

// Work is enqueued, and its errors come out at an event's Await and at Synchronize. These two and the
// destructor of a stream wait for the device; CUDA itself also waits in a copy of host memory that is not
// page-locked.
class CudaEvent final : public Event {
 public:
  CudaEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override {
    const CudaDeviceGuard guard(device_);
    CudaStatus(cudaEventDestroy(event_), "destroy", "an event").IgnoreError();
  }

  absl::Status Await() override {
    const CudaDeviceGuard guard(device_);  // in spite of its error: work may still run
    return CudaStatus(cudaEventSynchronize(event_), "copy on", absl::StrCat("device ", device_));
  }

 private:
  const int device_;
  const cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream, bool runs_kernels, StreamsShare& shared)
      : device_(device), stream_(stream), runs_kernels_(runs_kernels), shared_(shared) {}

  ~CudaStream() override {
    // Copies that are under way read and write memory that its owner may free after this. The wait also makes
    // the buffer of digests idle, which goes back for other streams.
    const absl::Status status = Synchronize();
    if (!BrokenContexts::OfProcess().Check(device_).ok()) return;  // the stream ended with its context
    LOG_IF(WARNING, !status.ok()) << "close a stream of device " << device_
                                  << ": an earlier copy failed: " << status;
    if (digests_) shared_.digest_buffers.Give(digests_);
    const CudaDeviceGuard guard(device_);
    CudaStatus(cudaStreamDestroy(stream_), "destroy", "a stream").IgnoreError();
  }

  absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(shared_.allocations.Find(destination, bytes).status());
    return Enqueue(CudaPointer(destination), source, bytes, cudaMemcpyHostToDevice);
  }

  // Only a source may be another library's memory: a put reads a caller's tensors where they are.
  absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) override {
    absl::Status own = shared_.allocations.Find(source, bytes).status();
    if (!own.ok() && !IsOfAnotherLibrary(source, bytes)) return own;
    return Enqueue(destination, CudaPointer(source), bytes, cudaMemcpyDeviceToHost);
  }

  absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(shared_.allocations.Find(destination, bytes).status());
    TC_RETURN_IF_ERROR(shared_.allocations.Find(source, bytes).status());
    // Where they are not peers, CUDA copies through the host by itself: the answers do not matter here.
    shared_.peers.Enable(device_, destination.device);
    shared_.peers.Enable(device_, source.device);
    return Enqueue(CudaPointer(destination), CudaPointer(source), bytes, cudaMemcpyDeviceToDevice);
  }

  absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) override {
    TC_RETURN_IF_ERROR(CheckDigests(device_, ranges, digests));
    for (const DeviceRange& range : ranges) {
      TC_RETURN_IF_ERROR(shared_.allocations.Find(range.begin, range.bytes).status());
    }
    TC_RETURN_IF_ERROR(CheckRunsKernels("digest"));
    if (!digests_) {
      TC_ASSIGN_OR_RETURN(digests_, shared_.digest_buffers.Take(device_));
    }
    // Batches share the buffer one after another: the stream keeps them in order.
    while (!ranges.empty()) {
      const size_t count = std::min<size_t>(ranges.size(), kMaxDigestsAtOnce);
      TC_RETURN_IF_ERROR(DigestBatchOf(ranges.first(count), digests.data()));
      ranges = ranges.subspan(count);
      digests = digests.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status Change(std::span<const ElementChanges> blocks) override {
    TC_RETURN_IF_ERROR(CheckChanges(device_, blocks, shared_.locked));
    for (const ElementChanges& block : blocks) {
      const uint64_t bytes = uint64_t{block.elements} * block.width;
      TC_RETURN_IF_ERROR(shared_.allocations.Find(block.begin, bytes).status());
    }
    TC_RETURN_IF_ERROR(CheckRunsKernels("change elements"));
    while (!blocks.empty()) {
      const size_t count = std::min<size_t>(blocks.size(), kMaxChangesAtOnce);
      TC_RETURN_IF_ERROR(ChangeBatchOf(blocks.first(count)));
      blocks = blocks.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize() override {
    const CudaDeviceGuard guard(device_);  // as for an event
    return CudaStatus(cudaStreamSynchronize(stream_), "copy on", absl::StrCat("device ", device_));
  }

  absl::StatusOr<bool> IsIdle() override {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaErrorNotReady) return false;  // no error, and none that the thread remembers
    TC_RETURN_IF_ERROR(CudaStatus(error, "copy on", absl::StrCat("device ", device_)));
    return true;
  }

  absl::Status Lend(DevicePtr memory, uint64_t bytes,
                    absl::FunctionRef<absl::Status(void* stream)> use) override {
    if (bytes > 0) TC_RETURN_IF_ERROR(shared_.allocations.Find(memory, bytes).status());
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    // The guard makes the device current for the library that gets the stream.
    return use(stream_);
  }

  absl::StatusOr<std::unique_ptr<Event>> Record() override {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    const std::string subject = absl::StrCat("an event on device ", device_);
    cudaEvent_t event = nullptr;
    // Blocking: a thread that waits for a copy sleeps, where CUDA would spin.
    TC_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "create", subject));
    auto recorded = std::make_unique<CudaEvent>(device_, event);
    TC_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream_), "record", subject));
    return recorded;
  }

 private:
  absl::Status CheckRunsKernels(std::string_view operation) const {
    if (runs_kernels_) return absl::OkStatus();
    const int min = MinKernelCapability();
    return absl::UnimplementedError(absl::StrCat(
        operation, " on device ", device_,
        min == std::numeric_limits<int>::max()
            ? ": TensorCast was built without nvcc, so it has no GPU code; build TensorCast with nvcc"
            : absl::StrCat(": the compute capability of the GPU is below ", min / 10, ".", min % 10,
                           ", the min of this build; use a newer GPU")));
  }

  absl::Status Enqueue(void* destination, const void* source, uint64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return absl::OkStatus();
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaMemcpyAsync(destination, source, bytes, kind, stream_), "enqueue",
                      absl::StrCat("a copy of ", bytes, " bytes on device ", device_));
  }

  // Memory of the device from another library. What lies between both ends is taken on trust.
  bool IsOfAnotherLibrary(DevicePtr memory, uint64_t bytes) const {
    // Memory of the table that is too short is an error of the caller, and not another library's.
    if (bytes == 0 || shared_.allocations.Find(memory, 1).ok()) return false;
    return IsDeviceMemory(memory) && IsDeviceMemory(memory + (bytes - 1));
  }

  // REQUIRES: kMaxDigestsAtOnce at most.
  absl::Status DigestBatchOf(std::span<const DeviceRange> ranges, DigestBytes* digests) {
    static_assert(sizeof(DigestBytes) == xxh3::kDigestBytes);
    // The ranges are the kernel's parameter, which the launch copies: they need no device memory.
    DigestBatch batch;
    for (size_t i = 0; i < ranges.size(); ++i) {
      batch.ranges[i] = {.address = ranges[i].begin.address, .bytes = ranges[i].bytes};
    }
    batch.digests = digests_.address;
    {
      const CudaDeviceGuard guard(device_);
      TC_RETURN_IF_ERROR(guard.status());
      TC_RETURN_IF_ERROR(Launch(DigestKernel(), ranges.size(), xxh3::kLanes, &batch, "digests"));
    }
    // In the stream's order: after the kernel, and before the next batch writes to the buffer.
    return Enqueue(digests, CudaPointer(digests_), ranges.size() * sizeof(DigestBytes),
                   cudaMemcpyDeviceToHost);
  }

  // REQUIRES: kMaxChangesAtOnce at most, which CheckChanges allowed.
  absl::Status ChangeBatchOf(std::span<const ElementChanges> blocks) {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    HostAsSeen host(shared_.locked);
    ChangeBatch batch;
    size_t count = 0;
    for (const ElementChanges& block : blocks) {
      if (block.places.empty()) continue;
      TC_ASSIGN_OR_RETURN(const std::byte* const places, host.Find(block.places.data()));
      TC_ASSIGN_OR_RETURN(const std::byte* const operands, host.Find(block.operands));
      batch.blocks[count++] = {.begin = CudaPointer(block.begin),
                               .places = reinterpret_cast<const uint16_t*>(places),
                               .operands = operands,
                               .count = static_cast<uint32_t>(block.places.size()),
                               .elements = block.elements,
                               .width = block.width,
                               .steps = block.kind == ElementChanges::Kind::kSteps};
    }
    if (count == 0) return absl::OkStatus();
    return Launch(ChangeKernel(), count, kChangeLanes, &batch, "changes of blocks");
  }

  // Of a kernel with one parameter, which the launch copies. REQUIRES: the device is the current one.
  absl::Status Launch(const void* kernel, size_t blocks, int threads, void* parameter,
                      std::string_view what) {
    void* parameters[] = {parameter};
    return CudaStatus(
        cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                         parameters, /*sharedMem=*/0, stream_),
        "enqueue", absl::StrCat(blocks, " ", what, " on device ", device_));
  }

  const int device_;
  const cudaStream_t stream_;
  const bool runs_kernels_;
  StreamsShare& shared_;
  DevicePtr digests_;  // where the kernel writes; none until it is needed
};

}  // namespace

bool PeerAccess::Enable(int device, int other) {
  if (device == other) return true;
  absl::MutexLock lock(&mutex_);
  // Held across the call to CUDA, so that no copy between the two is enqueued before the answer.
  const auto [asked, first] = asked_.try_emplace({device, other}, false);
  // Each pair of devices is asked about once, and warned of once.
  if (!first) return asked->second;
  const absl::Status enabled = EnablePeer(device, other);
  LOG_IF(WARNING, !enabled.ok()) << "copy between devices " << device << " and " << other
                                 << ": copies go through the host, and are slower: " << enabled;
  return asked->second = enabled.ok();
}

DigestBuffers::~DigestBuffers() {
  absl::MutexLock lock(&mutex_);
  for (const DevicePtr buffer : all_) {
    if (!BrokenContexts::OfProcess().Check(buffer.device).ok()) continue;  // it went with its context
    const CudaDeviceGuard guard(buffer.device);
    CudaStatus(cudaFree(CudaPointer(buffer)), "free", "room for digests").IgnoreError();
  }
}

absl::StatusOr<DevicePtr> DigestBuffers::Take(int device) {
  absl::MutexLock lock(&mutex_);
  std::vector<DevicePtr>& idle = idle_[device];
  if (idle.empty()) {
    const CudaDeviceGuard guard(device);
    TC_RETURN_IF_ERROR(guard.status());
    // For the largest batch, so that every buffer suits every stream of the device.
    void* pointer = nullptr;
    TC_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&pointer, kMaxDigestsAtOnce * xxh3::kDigestBytes), "allocate",
                                  absl::StrCat("room for digests on device ", device)));
    idle.push_back({.device = device, .address = reinterpret_cast<uint64_t>(pointer)});
    all_.push_back(idle.back());
  }
  const DevicePtr taken = idle.back();
  idle.pop_back();
  return taken;
}

void DigestBuffers::Give(DevicePtr buffer) {
  absl::MutexLock lock(&mutex_);
  idle_[buffer.device].push_back(buffer);
}

absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, bool runs_kernels, StreamsShare& shared) {
  const CudaDeviceGuard guard(device);
  TC_RETURN_IF_ERROR(guard.status());
  cudaStream_t stream = nullptr;
  // Non-blocking: an ordinary stream would wait for the legacy default stream, which a program that links us
  // may use.
  TC_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                "create a stream on", absl::StrCat("device ", device)));
  return std::make_unique<CudaStream>(device, stream, runs_kernels, shared);
}

}  // namespace tensorcast
