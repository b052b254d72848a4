#include "core/memory/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// The page size's base-2 logarithm in the flags' upper bits, as in <linux/memfd.h>, which clashes with
// <sys/mman.h>.
constexpr unsigned kHuge2MiB = 21u << 26;
constexpr char kName[] = "tensorcast-host-pool";
// FUTURE_WRITE leaves our own mapping writable, and denies it to every later one, also through
// /proc/<pid>/fd.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

std::string Describe(uint64_t bytes) { return absl::StrCat("a host pool of ", bytes, " bytes"); }

}  // namespace

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      huge_pages_(other.huge_pages_) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(huge_pages_, other.huge_pages_);
  return *this;
}

SharedRegion::~SharedRegion() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SharedRegion> SharedRegion::Create(uint64_t bytes, bool huge_pages) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge_pages ? MFD_HUGETLB | kHuge2MiB : 0);
  const int fd = memfd_create(kName, flags);
  if (fd < 0) return ErrnoStatus(errno, "memfd_create for", Describe(bytes));
  SharedRegion region(fd, bytes, huge_pages);
  TC_RETURN_IF_ERROR(region.SizeMapAndSeal());
  return region;
}

absl::Status SharedRegion::SizeMapAndSeal() {
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
    return ErrnoStatus(errno, "ftruncate for", Describe(bytes_));
  }
  void* mapping = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mmap for", Describe(bytes_));
  base_ = static_cast<std::byte*>(mapping);
  if (fcntl(fd_, F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing (Linux 5.1 or later is needed)", Describe(bytes_));
  }
  madvise(base_, bytes_, MADV_DONTDUMP);  // a core file of the daemon should not hold every model
  return absl::OkStatus();
}

}  // namespace tensorcast
