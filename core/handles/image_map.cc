#include "core/handles/image_map.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

uint64_t RoundUpToGranule(uint64_t bytes) {
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

absl::Status BadExtents(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the daemon's extents of the replica ", what));
}

// The extents as far as the image needs them, whole granules each; checked against the pool as it is, so that
// no access behind its end can raise SIGBUS.
absl::StatusOr<std::vector<Extent>> ExtentsOfImage(int pool_fd, const HostHandles& host,
                                                   uint64_t image_bytes) {
  struct stat pool;
  if (fstat(pool_fd, &pool) != 0) return ErrnoStatus(errno, "looking at", "the daemon's pool");
  const uint64_t pool_bytes = std::min(host.pool_bytes, static_cast<uint64_t>(pool.st_size));
  std::vector<Extent> needed;
  uint64_t left = image_bytes;
  for (const Extent& extent : host.extents) {
    if (left == 0) break;
    if (extent.offset % kGranuleBytes != 0 || extent.bytes % kGranuleBytes != 0 || extent.bytes == 0) {
      return BadExtents("are not whole granules");
    }
    if (extent.offset > pool_bytes || extent.bytes > pool_bytes - extent.offset) {
      return BadExtents("reach past the pool");
    }
    const uint64_t covered = std::min(extent.bytes, left);
    needed.push_back({extent.offset, RoundUpToGranule(covered)});
    left -= covered;
  }
  if (left > 0) return BadExtents(absl::StrCat("lack ", left, " bytes of the image"));
  return needed;
}

// Address space at a granule's boundary, which huge pages need, that nothing can be read from yet.
absl::StatusOr<std::byte*> Reserve(uint64_t bytes) {
  void* reserved =
      mmap(nullptr, bytes + kGranuleBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return ErrnoStatus(errno, "reserving address space for", "a replica");
  const auto address = reinterpret_cast<uint64_t>(reserved);
  const uint64_t before = RoundUpToGranule(address) - address;
  const uint64_t behind = kGranuleBytes - before;
  std::byte* const aligned = static_cast<std::byte*>(reserved) + before;
  if (before > 0) munmap(reserved, before);
  if (behind > 0) munmap(aligned + bytes, behind);
  return aligned;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageMap>> ImageMap::Map(int pool_fd, const HostHandles& host,
                                                        uint64_t image_bytes) {
  if (image_bytes == 0) return std::unique_ptr<ImageMap>(new ImageMap(nullptr, 0, 0));
  TC_ASSIGN_OR_RETURN(const std::vector<Extent> extents, ExtentsOfImage(pool_fd, host, image_bytes));
  const uint64_t mapped_bytes = RoundUpToGranule(image_bytes);
  TC_ASSIGN_OR_RETURN(std::byte * base, Reserve(mapped_bytes));
  std::unique_ptr<ImageMap> map(new ImageMap(base, mapped_bytes, image_bytes));
  std::byte* at = base;
  for (const Extent& extent : extents) {
    if (mmap(at, extent.bytes, PROT_READ, MAP_SHARED | MAP_FIXED, pool_fd,
             static_cast<off_t>(extent.offset)) == MAP_FAILED) {
      return ErrnoStatus(errno, "mapping a replica of", absl::StrCat(extents.size(), " extents"));
    }
    at += extent.bytes;
  }
  return map;
}

ImageMap::~ImageMap() {
  if (mapped_bytes_ > 0) munmap(base_, mapped_bytes_);
}

}  // namespace tensorcast
