// The image of a put, as its tensors make it up: any piece of it can be written out, without an image of the
// whole. Private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/layout.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// Thread-safe, but for each thread's number, which one thread uses at a time.
class PutImage {
 public:
  // Borrows the tensors. INVALID_ARGUMENT as AssignOffsets and of addresses, naming the tensor;
  // FAILED_PRECONDITION for GPU memory without `devices`, which may be null. Up to `threads` write.
  static absl::StatusOr<PutImage> Create(std::span<const PutTensor> tensors, DeviceRuntime* devices,
                                         int threads);

  const ImageLayout& layout() const { return layout_; }
  bool on_devices() const { return on_devices_; }
  // Writes image bytes from `offset` on: tensors' bytes, zeros between them. REQUIRES: they are in the image.
  absl::Status Write(int thread, uint64_t offset, HostSpan to) const;

 private:
  using Streams = std::map<int, std::unique_ptr<Stream>>;  // by device

  PutImage(std::span<const PutTensor> tensors, DeviceRuntime* devices, int threads)
      : tensors_(tensors), devices_(devices), streams_(threads) {}
  absl::Status CopyFromDevice(size_t tensor, uint64_t offset, HostSpan to, Streams& streams) const;

  std::span<const PutTensor> tensors_;
  DeviceRuntime* devices_;
  ImageLayout layout_;
  bool on_devices_ = false;
  mutable std::vector<Streams> streams_;  // of each thread
};

}  // namespace tensorcast::client
