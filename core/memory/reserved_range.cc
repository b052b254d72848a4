#include "core/memory/reserved_range.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/memory/huge_pages.h"

namespace tensorcast {
namespace {

constexpr uint64_t kBoundary = kHugePageBytes;  // which a granule is made to hold

bool IsOfHugePagesSetAside(int fd) {
  struct statfs file_system;
  return fstatfs(fd, &file_system) == 0 && file_system.f_type == HUGETLBFS_MAGIC;
}

// A private mapping would reserve a copy of each page. Of ordinary pages it reserves none (MAP_NORESERVE),
// since no process means to write to all of them. Of reserved huge pages it does: a write without a free page
// would be a SIGBUS.
int SharingOf(ReservedRange::Access access, int fd) {
  if (access != ReservedRange::Access::kCopyOnWrite) return MAP_SHARED;
  return IsOfHugePagesSetAside(fd) ? MAP_PRIVATE : MAP_PRIVATE | MAP_NORESERVE;
}

}  // namespace

absl::StatusOr<ReservedRange> ReservedRange::Reserve(uint64_t bytes, std::string_view what) {
  if (bytes == 0) return ReservedRange();
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  // A granule more, so that a boundary lies in it; the ends go back.
  void* const reserved =
      mmap(nullptr, bytes + kBoundary, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return ErrnoStatus(errno, "reserve address space for", what);
  const auto address = reinterpret_cast<uintptr_t>(reserved);
  const uint64_t before = (kBoundary - address % kBoundary) % kBoundary;
  std::byte* const base = static_cast<std::byte*>(reserved) + before;
  if (before > 0) munmap(reserved, before);
  munmap(base + bytes, kBoundary - before);
  return ReservedRange(base, bytes);
}

uint64_t ReservedRange::MappedBytes(int fd, uint64_t bytes) {
  struct statfs file_system;
  if (fstatfs(fd, &file_system) != 0 || file_system.f_type != HUGETLBFS_MAGIC) return bytes;
  const auto page_bytes = static_cast<uint64_t>(file_system.f_bsize);
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

ReservedRange::~ReservedRange() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

absl::Status ReservedRange::Map(uint64_t at, int fd, uint64_t offset, uint64_t bytes, Access access) {
  CHECK(at <= bytes_ && bytes <= bytes_ - at) << "bytes " << at << " + " << bytes << " of " << bytes_;
  if (MappedBytes(fd, bytes) > bytes_ - at) {
    return absl::InvalidArgumentError(absl::StrCat(
        "map ", bytes,
        " bytes of shared memory: the file's last huge page does not fit in the reserved addresses; map "
        "whole huge pages"));
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // MAP_FIXED replaces a part of the reserved range in one step, also one that is mapped already.
  if (mmap(base_ + at, bytes, protection, SharingOf(access, fd) | MAP_FIXED, fd,
           static_cast<off_t>(offset)) != MAP_FAILED) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "map", absl::StrCat(bytes, " bytes of shared memory"));
}

}  // namespace tensorcast
