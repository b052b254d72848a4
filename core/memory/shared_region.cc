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
#include "core/memory/huge_pages.h"

namespace tensorcast {
namespace {

// The page size's base-2 logarithm in the flags' upper bits, as in <linux/memfd.h>, which clashes with
// <sys/mman.h>.
constexpr unsigned kHuge2MiB = 21u << 26;
constexpr char kName[] = "tensorcast-host-pool";  // of each segment, as /proc shows it
// FUTURE_WRITE leaves our own mapping writable, and denies it to every later one, also through
// /proc/<pid>/fd.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

std::string Describe(uint64_t bytes) { return absl::StrCat("a host pool of ", bytes, " bytes"); }

// What one thread touches at a time: about 6 ms of page clearing.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;

}  // namespace

absl::StatusOr<SharedRegion> SharedRegion::Create(uint64_t bytes, uint64_t segment_bytes, Pages pages) {
  TC_ASSIGN_OR_RETURN(ReservedRange mapping, ReservedRange::Reserve(bytes, Describe(bytes)));
  SharedRegion region(std::move(mapping), segment_bytes, pages);
  for (uint64_t begin = 0; begin < bytes; begin += segment_bytes) TC_RETURN_IF_ERROR(region.AddSegment());
  // A core file of the daemon should not hold every model.
  madvise(region.base(), bytes, MADV_DONTDUMP);
  return region;
}

absl::Status SharedRegion::AddSegment() {
  const uint64_t begin = fds_.size() * segment_bytes_;
  const uint64_t bytes = std::min(segment_bytes_, this->bytes() - begin);
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (pages_ == Pages::kHugeSetAside ? MFD_HUGETLB | kHuge2MiB : 0);
  UniqueFd fd(memfd_create(kName, flags));
  if (!fd) return ErrnoStatus(errno, "memfd_create for", Describe(this->bytes()));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "ftruncate for", Describe(this->bytes()));
  }
  TC_RETURN_IF_ERROR(mapping_.Map(begin, fd.get(), 0, bytes, ReservedRange::Access::kWrite));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing (Linux 5.1 or later is needed)", Describe(this->bytes()));
  }
  fds_.push_back(std::move(fd));
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
  if (region_.pages() == SharedRegion::Pages::kHugeWhereMade) AskForHugePages(region_.base() + offset, bytes);
  int result;
  do {
    result = madvise(region_.base() + offset, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN) && !stop_);
  if (result == 0 || stop_) return absl::OkStatus();
  // An older kernel: give the files their pages, which is the dear part; mapping them at first touch costs
  // little. A write to each page from here would race with those who use the pool already.
  const int error = errno == EINVAL ? PopulateFiles(offset, bytes) : errno;
  if (error == 0 || stop_) return absl::OkStatus();
  return ErrnoStatus(
      error, "pre-faulting",
      absl::StrCat("host pool bytes ", offset, " to ", offset + bytes, " of ", region_.bytes()));
}

int Prefaulter::PopulateFiles(uint64_t offset, uint64_t bytes) {
  while (bytes > 0 && !stop_) {
    const uint64_t begin = offset % region_.segment_bytes();
    const uint64_t here = std::min(bytes, region_.segment_bytes() - begin);
    const int fd = region_.fd(offset / region_.segment_bytes());
    if (fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(here)) != 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    offset += here;
    bytes -= here;
  }
  return 0;
}

}  // namespace tensorcast
