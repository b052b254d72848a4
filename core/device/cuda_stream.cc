#include "core/device/cuda_stream.h"

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/cuda_status.h"

namespace tensorcast {
namespace {

class CudaStream final : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream, const AllocationTable& allocations)
      : device_(device), stream_(stream), allocations_(allocations) {}

  ~CudaStream() override {
    if (const absl::Status status = Synchronize(); !status.ok()) LOG(WARNING) << "unread error: " << status;
    const CudaDeviceGuard guard(device_);
    CudaStatus(cudaStreamDestroy(stream_), "destroying", "a stream").IgnoreError();
  }

  absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(allocations_.Find(destination, bytes).status());
    return Enqueue(CudaPointer(destination), source, bytes, cudaMemcpyHostToDevice);
  }

  absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(allocations_.Find(source, bytes).status());
    return Enqueue(destination, CudaPointer(source), bytes, cudaMemcpyDeviceToHost);
  }

  absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(allocations_.Find(destination, bytes).status());
    TC_RETURN_IF_ERROR(allocations_.Find(source, bytes).status());
    return Enqueue(CudaPointer(destination), CudaPointer(source), bytes, cudaMemcpyDeviceToDevice);
  }

  absl::Status Synchronize() override {
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaStreamSynchronize(stream_), "copying on", absl::StrCat("device ", device_));
  }

 private:
  absl::Status Enqueue(void* destination, const void* source, uint64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return absl::OkStatus();
    const CudaDeviceGuard guard(device_);
    TC_RETURN_IF_ERROR(guard.status());
    return CudaStatus(cudaMemcpyAsync(destination, source, bytes, kind, stream_), "enqueueing",
                      absl::StrCat("a copy of ", bytes, " bytes on device ", device_));
  }

  const int device_;
  const cudaStream_t stream_;
  const AllocationTable& allocations_;
};

}  // namespace

CudaDeviceGuard::CudaDeviceGuard(int device) {
  int current = -1;
  status_ = CudaStatus(cudaGetDevice(&current), "asking for", "the current device");
  if (!status_.ok() || current == device) return;
  status_ = CudaStatus(cudaSetDevice(device), "selecting", absl::StrCat("device ", device));
  if (status_.ok()) previous_ = current;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (previous_ >= 0) CudaStatus(cudaSetDevice(previous_), "selecting", "the previous device").IgnoreError();
}

absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, const AllocationTable& allocations) {
  const CudaDeviceGuard guard(device);
  TC_RETURN_IF_ERROR(guard.status());
  cudaStream_t stream = nullptr;
  TC_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                "creating a stream on", absl::StrCat("device ", device)));
  return std::make_unique<CudaStream>(device, stream, allocations);
}

}  // namespace tensorcast
