#include "client/sealed_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/memory/huge_pages.h"
#include "core/memory/reserved_range.h"

namespace tensorcast::client {
namespace {

constexpr uint64_t kCopyBytes = uint64_t{8} << 20;  // of one piece of work
constexpr unsigned kMaxCopyThreads = 4;
constexpr uint64_t kMakeBytes = uint64_t{64} << 20;  // of memory that is made at a time; some milliseconds
constexpr char kWhat[] = "copying what is put";

absl::StatusOr<ImageLayout> LayoutOf(std::span<const PutTensor> tensors) {
  ImageLayout layout;
  layout.tensors.reserve(tensors.size());
  for (const PutTensor& tensor : tensors) {
    uint64_t nbytes = tensor.bytes.size();
    if (tensor.device) {
      if (nbytes > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor \"", tensor.name, "\" is said to be in host memory and on a GPU"));
      }
      TC_ASSIGN_OR_RETURN(nbytes, TensorBytes(tensor.dtype, tensor.shape));
    }
    layout.tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .nbytes = nbytes});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return layout;
}

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

std::vector<CopyPiece> PiecesOf(std::span<const PutTensor> tensors, const ImageLayout& layout,
                                std::byte* image) {
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes = tensors[i].bytes;
    for (uint64_t done = 0; done < bytes.size(); done += kCopyBytes) {
      pieces.push_back({image + layout.tensors[i].offset + done, bytes.data() + done,
                        std::min<uint64_t>(kCopyBytes, bytes.size() - done)});
    }
  }
  return pieces;
}

// Leaves the rest out once the context ends.
void CopyAll(const RequestContext& context, const std::vector<CopyPiece>& pieces, uint64_t total_bytes) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < pieces.size() && context.Check(kWhat).ok(); i = next++) {
      std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
  };
  const uint64_t wanted = std::min<uint64_t>(total_bytes / (4 * kCopyBytes), kMaxCopyThreads);
  const uint64_t helpers = std::min<uint64_t>(wanted, std::max(std::thread::hardware_concurrency(), 1u) - 1);
  std::vector<std::jthread> threads;
  try {
    for (uint64_t i = 0; i < helpers; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads are to be had: it takes longer.
  }
  work();
}

// Page-locked while it lives, as far as the host allows: copies from GPUs are several times as fast then.
class PageLocked {
 public:
  PageLocked(DeviceRuntime& devices, std::byte* base, uint64_t bytes)
      : devices_(devices), base_(base), status_(devices.RegisterHost(base, bytes, HostAccess::kReadWrite)) {
    LOG_IF(WARNING, !status_.ok()) << "copying from GPUs to memory that is not page-locked: " << status_;
  }
  ~PageLocked() {
    if (status_.ok()) devices_.UnregisterHost(base_).IgnoreError();
  }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;

 private:
  DeviceRuntime& devices_;
  std::byte* const base_;
  const absl::Status status_;
};

// Those on GPUs, by a stream for each GPU.
absl::Status CopyFromDevices(std::span<const PutTensor> tensors, const ImageLayout& layout, std::byte* image,
                             DeviceRuntime* devices) {
  const auto on_device = [](const PutTensor& tensor) { return static_cast<bool>(tensor.device); };
  if (std::ranges::none_of(tensors, on_device)) return absl::OkStatus();
  if (devices == nullptr) {
    return absl::FailedPreconditionError("putting tensors of GPU memory needs ClientOptions::devices");
  }
  const PageLocked page_locked(*devices, image, layout.image_bytes);
  std::map<int, std::unique_ptr<Stream>> streams;  // their ends wait for their copies
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!on_device(tensors[i]) || layout.tensors[i].nbytes == 0) continue;
    std::unique_ptr<Stream>& stream = streams[tensors[i].device.device];
    if (stream == nullptr) {
      TC_ASSIGN_OR_RETURN(stream, devices->CreateStream(tensors[i].device.device));
    }
    const Tensor& tensor = layout.tensors[i];
    const absl::Status copying = stream->CopyToHost(image + tensor.offset, tensors[i].device, tensor.nbytes);
    if (!copying.ok()) return Annotate(copying, absl::StrCat("tensor \"", tensor.name, "\""));
  }
  for (const auto& [device, stream] : streams) TC_RETURN_IF_ERROR(stream->Synchronize());
  return absl::OkStatus();
}

// Gives the memfd its memory, mapped for writing while the result lives. Memory that the host lacks is an
// error here instead of a SIGBUS in the copy.
absl::StatusOr<ReservedRange> MakeMemory(const RequestContext& context, int fd, uint64_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "size", "memory for the image to put");
  }
  TC_ASSIGN_OR_RETURN(ReservedRange memory, ReservedRange::Reserve(bytes, "the image to put"));
  TC_RETURN_IF_ERROR(memory.Map(0, fd, 0, bytes, ReservedRange::Access::kWrite));
  for (uint64_t at = 0; at < bytes; at += kMakeBytes) {
    TC_RETURN_IF_ERROR(context.Check(kWhat));
    const uint64_t here = std::min(kMakeBytes, bytes - at);
    AskForHugePages(memory.base() + at, here);
    const int error = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(here));
    if (error != 0) return ErrnoStatus(error, "reserve memory for", "the image to put");
  }
  return memory;
}

absl::Status Fill(const RequestContext& context, int fd, std::span<const PutTensor> tensors,
                  const ImageLayout& layout, DeviceRuntime* devices) {
  if (layout.image_bytes == 0) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const ReservedRange mapping, MakeMemory(context, fd, layout.image_bytes));
  CopyAll(context, PiecesOf(tensors, layout, mapping.base()), layout.image_bytes);
  TC_RETURN_IF_ERROR(context.Check(kWhat));
  return CopyFromDevices(tensors, layout, mapping.base(), devices);
}

}  // namespace

absl::StatusOr<SealedImage> BuildSealedImage(const RequestContext& context,
                                             std::span<const PutTensor> tensors, DeviceRuntime* devices) {
  SealedImage image;
  TC_ASSIGN_OR_RETURN(image.layout, LayoutOf(tensors));
  image.memfd = UniqueFd(memfd_create("tensorcast-put", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!image.memfd) return ErrnoStatus(errno, "create", "memory for the image to put");
  const int fd = image.memfd.get();
  // Unmapped again when this returns, as sealing demands.
  TC_RETURN_IF_ERROR(Fill(context, fd, tensors, image.layout, devices));
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal", "the image to put");
  }
  return image;
}

}  // namespace tensorcast::client
