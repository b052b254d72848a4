#include "core/memory/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; its number is the same on every architecture
#endif

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

// What one thread touches at a time: about 6 ms of page clearing.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;

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

Prefaulter::Prefaulter(const SharedRegion& region, int threads) : region_(region), running_(threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Prefaulter::~Prefaulter() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void Prefaulter::Wait() {
  absl::MutexLock lock(&mutex_);
  auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  mutex_.Await(absl::Condition(&ended));
}

void Prefaulter::Run() {
  while (!stop_) {
    const uint64_t offset = next_offset_.fetch_add(kStepBytes);
    if (offset >= region_.bytes()) break;
    const uint64_t bytes = std::min(kStepBytes, region_.bytes() - offset);
    if (const absl::Status status = Populate(offset, bytes); !status.ok()) {
      if (!stop_.exchange(true)) LOG(ERROR) << status.message() << "; the rest appears at first touch";
      break;
    }
    if (populated_bytes_.fetch_add(bytes) + bytes == region_.bytes()) {
      complete_.store(true, std::memory_order_release);
    }
  }
  absl::MutexLock lock(&mutex_);
  --running_;
}

absl::Status Prefaulter::Populate(uint64_t offset, uint64_t bytes) {
  int result;
  do {
    result = madvise(region_.base() + offset, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN) && !stop_);
  if (result == 0 || stop_) return absl::OkStatus();
  // An older kernel: give the file its pages, which is the dear part; mapping them at first touch costs
  // little. A write to each page from here would race with those who use the pool already.
  if (errno == EINVAL) {
    do {
      result = fallocate(region_.fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR && !stop_);
    if (result == 0 || stop_) return absl::OkStatus();
  }
  return ErrnoStatus(
      errno, "pre-faulting",
      absl::StrCat("host pool bytes ", offset, " to ", offset + bytes, " of ", region_.bytes()));
}

}  // namespace tensorcast
