// The next version of weights on a GPU that has the previous one, made in this process in three ways: by the
// GPU, by the host, and, as a bound, copied whole within the GPU. 1.4 % of the bf16 elements change by one to
// three representable values. Each way digests every chunk. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/device/copy_queue.h"
#include "core/device/device_runtime.h"
#include "core/device/direct_copies.h"
#include "core/difference/difference_decoder.h"
#include "daemon/sources/device_rebuild.h"

namespace tensorcast::bench {

class GpuRebuild {
 public:
  // Makes both versions, of `bytes` bytes, and their difference. `devices` must outlive this object.
  // UNIMPLEMENTED if the device runs no kernels.
  static absl::StatusOr<std::unique_ptr<GpuRebuild>> Open(DeviceRuntime& devices, int device, uint64_t bytes);
  ~GpuRebuild();
  GpuRebuild(const GpuRebuild&) = delete;
  GpuRebuild& operator=(const GpuRebuild&) = delete;

  // Each returns the rate of the image in GB/s. DATA_LOSS for a wrong chunk.
  absl::StatusOr<double> OnGpu();
  // The base's chunks are copied to host memory, changed and digested there, and copied to the target.
  absl::StatusOr<double> OnHost();
  absl::StatusOr<double> Copy();

 private:
  class Digests;
  // Makes one chunk, for the thread with this number.
  using Make = std::function<absl::Status(size_t thread, uint32_t chunk, Digests& digests)>;

  GpuRebuild(DeviceRuntime& devices, int device);
  absl::Status Prepare(uint64_t bytes);
  // Makes all chunks, on as many threads as a daemon uses for a difference.
  absl::StatusOr<double> MakeAll(const std::vector<Digest>& expected, const Make& make);

  DeviceRuntime& devices_;
  const int device_;
  ImageLayout layout_;
  std::vector<Digest> base_digests_;
  std::vector<Digest> target_digests_;
  std::vector<std::byte> difference_;
  std::optional<DifferenceDecoder> decoder_;  // of difference_
  DevicePtr base_;
  DevicePtr target_;
  DirectCopies direct_;
  CopyQueue to_host_;
  CopyQueue to_device_;
  std::unique_ptr<daemon::DeviceRebuild> rebuild_;
};

}  // namespace tensorcast::bench
