#include "client/put_image.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::client {

absl::StatusOr<PutImage> PutImage::Create(std::span<const PutTensor> tensors, DeviceRuntime* devices,
                                          int threads) {
  PutImage image(tensors, devices, threads);
  ImageLayout& layout = image.layout_;
  layout.tensors.reserve(tensors.size());
  for (const PutTensor& tensor : tensors) {
    uint64_t nbytes = tensor.bytes.size();
    if (tensor.device) {
      if (nbytes > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("put tensor \"", tensor.name,
                         "\": the tensor is given in host memory and on a GPU; give only one of the two"));
      }
      TC_ASSIGN_OR_RETURN(nbytes, TensorBytes(tensor.dtype, tensor.shape));
      image.on_devices_ = true;
    }
    layout.tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .nbytes = nbytes});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  if (image.on_devices_ && devices == nullptr) {
    return absl::FailedPreconditionError(
        "put: this client has no device runtime to read tensors in GPU memory; set ClientOptions::devices");
  }
  return image;
}

// Any thread writes any piece of the image, as the daemon asks: a piece may begin within a tensor, end within
// another and cross the zeros between them. Copies from GPUs are enqueued on the thread's own streams, one
// for each device, and the piece is there when all of them have ended.
absl::Status PutImage::Write(int thread, uint64_t offset, HostSpan to) const {
  Streams& streams = streams_[thread];
  const std::vector<Tensor>& tensors = layout_.tensors;
  // The first that does not end before the piece begins.
  auto tensor = std::ranges::partition_point(
      tensors, [offset](const Tensor& other) { return other.offset + other.nbytes <= offset; });
  while (!to.empty()) {
    // Zeros up to the next tensor, then its bytes.
    const uint64_t begin = tensor != tensors.end() ? tensor->offset : layout_.image_bytes;
    if (begin > offset) {
      const HostSpan gap = to.first(std::min<uint64_t>(to.size(), begin - offset));
      std::ranges::fill(gap, std::byte{0});
      offset += gap.size();
      to = to.subspan(gap.size());
    }
    if (to.empty()) break;
    const auto index = static_cast<size_t>(tensor - tensors.begin());
    const uint64_t within = offset - tensor->offset;
    const HostSpan here = to.first(std::min<uint64_t>(to.size(), tensor->nbytes - within));
    if (tensors_[index].device && !here.empty()) {
      TC_RETURN_IF_ERROR(CopyFromDevice(index, within, here, streams));
    } else if (!here.empty()) {
      std::memcpy(here.data(), tensors_[index].bytes.data() + within, here.size());
    }
    offset += here.size();
    to = to.subspan(here.size());
    ++tensor;
  }
  // The caller tells the daemon that the piece is filled, so no copy may still be running.
  for (const auto& [device, stream] : streams) TC_RETURN_IF_ERROR(stream->Synchronize());
  return absl::OkStatus();
}

absl::Status PutImage::CopyFromDevice(size_t tensor, uint64_t offset, HostSpan to, Streams& streams) const {
  const DevicePtr from = tensors_[tensor].device;
  std::unique_ptr<Stream>& stream = streams[from.device];
  if (stream == nullptr) {
    TC_ASSIGN_OR_RETURN(stream, devices_->CreateStream(from.device));
  }
  return Annotate(stream->CopyToHost(to.data(), from + offset, to.size()),
                  absl::StrCat("copy tensor \"", tensors_[tensor].name, "\" from the GPU"));
}

}  // namespace tensorcast::client
