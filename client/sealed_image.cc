#include "client/sealed_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tensorcast::client {
namespace {

constexpr uint64_t kCopyBytes = uint64_t{8} << 20;  // of one piece of work
constexpr unsigned kMaxCopyThreads = 4;

absl::StatusOr<ImageLayout> LayoutOf(std::span<const PutTensor> tensors) {
  ImageLayout layout;
  layout.tensors.reserve(tensors.size());
  for (const PutTensor& tensor : tensors) {
    layout.tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .nbytes = tensor.bytes.size()});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return layout;
}

// Writable memory of a memfd; unmapped at the end of its scope, as sealing demands.
class WritableMapping {
 public:
  WritableMapping(int fd, uint64_t bytes)
      : bytes_(bytes), base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {}
  ~WritableMapping() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }
  WritableMapping(const WritableMapping&) = delete;
  WritableMapping& operator=(const WritableMapping&) = delete;

  std::byte* base() const { return base_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(base_); }

 private:
  const uint64_t bytes_;
  void* const base_;
};

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

void CopyAll(const std::vector<CopyPiece>& pieces, uint64_t total_bytes) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
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

absl::Status Fill(int fd, std::span<const PutTensor> tensors, const ImageLayout& layout) {
  if (layout.image_bytes == 0) return absl::OkStatus();
  const WritableMapping mapping(fd, layout.image_bytes);
  if (mapping.base() == nullptr) return ErrnoStatus(errno, "map", "the image to put");
  CopyAll(PiecesOf(tensors, layout, mapping.base()), layout.image_bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SealedImage> BuildSealedImage(std::span<const PutTensor> tensors) {
  SealedImage image;
  TC_ASSIGN_OR_RETURN(image.layout, LayoutOf(tensors));
  image.memfd = UniqueFd(memfd_create("tensorcast-put", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!image.memfd) return ErrnoStatus(errno, "create", "memory for the image to put");
  const int fd = image.memfd.get();
  // posix_fallocate, not ftruncate alone: memory that the host lacks is an error here instead of a SIGBUS in
  // the copy.
  if (image.layout.image_bytes > 0) {
    const int error = posix_fallocate(fd, 0, static_cast<off_t>(image.layout.image_bytes));
    if (error != 0) return ErrnoStatus(error, "reserve memory for", "the image to put");
  }
  TC_RETURN_IF_ERROR(Fill(fd, tensors, image.layout));
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal", "the image to put");
  }
  return image;
}

}  // namespace tensorcast::client
