// The image of a put's tensors. Write makes any piece of the image, so the client never holds the whole
// image. Private to this folder.
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

// Thread-safe, but only one thread at a time may pass the same `thread` to Write.
class PutImage {
 public:
  // Borrows the tensors. At most `threads` threads call Write. FAILED_PRECONDITION if `devices` is null and a
  // tensor is in GPU memory. INVALID_ARGUMENT, with the tensor's name, if a tensor has both host and GPU
  // memory. Other errors are those of TensorBytes and AssignOffsets.
  static absl::StatusOr<PutImage> Create(std::span<const PutTensor> tensors, DeviceRuntime* devices,
                                         int threads);

  const ImageLayout& layout() const { return layout_; }
  bool on_devices() const { return on_devices_; }
  // Fills the span `to` with the image's bytes from `offset` on, and waits for copies from GPUs. REQUIRES:
  // `thread` is below `threads`, and the image has these bytes.
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
  mutable std::vector<Streams> streams_;  // by thread number
};

}  // namespace tensorcast::client
