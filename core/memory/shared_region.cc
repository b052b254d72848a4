#include "core/memory/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/memory/huge_pages.h"
#include "core/memory/numa_policy.h"

namespace tensorcast {
namespace {

// The page size's base-2 logarithm in the flags' upper bits, as in <linux/memfd.h>, which clashes with
// <sys/mman.h>.
constexpr unsigned kHuge2MiB = 21u << 26;
constexpr char kName[] = "tensorcast-host-pool";  // of each segment, as /proc shows it

std::string Describe(uint64_t bytes) { return absl::StrCat("a host pool of ", bytes, " bytes"); }

// The bytes that a thread touches at a time: about 6 ms of page clearing, after which stop_ is looked at.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;

// Whether another process can neither write to it nor take its pages away.
bool IsSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kPoolSeals) == kPoolSeals;
}

uint64_t FileBytes(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

}  // namespace

// Each kept segment gets the first free place of its size. Places are alike but for the last one, which may
// be shorter, so a segment of a pool of another size may fit none.
std::vector<KeptSegment> PlaceKept(uint64_t bytes, uint64_t segment_bytes, std::vector<KeptSegment> kept) {
  std::vector<KeptSegment> places((bytes + segment_bytes - 1) / segment_bytes);
  for (KeptSegment& segment : kept) {
    // Without these seals another process could change what the pool serves.
    if (segment.fd && !IsSealed(segment.fd.get())) continue;
    for (size_t i = 0; i < places.size(); ++i) {
      const bool fits =
          !segment.fd || FileBytes(segment.fd.get()) == std::min(segment_bytes, bytes - i * segment_bytes);
      if (!places[i].name.empty() || !fits) continue;
      places[i] = std::move(segment);
      break;
    }
  }
  return places;
}

absl::StatusOr<SharedRegion> SharedRegion::Create(uint64_t bytes, uint64_t segment_bytes, Pages pages,
                                                  std::vector<KeptSegment>& places,
                                                  const std::vector<int>& numa_nodes) {
  TC_ASSIGN_OR_RETURN(ReservedRange mapping, ReservedRange::Reserve(bytes, Describe(bytes)));
  SharedRegion region(std::move(mapping), segment_bytes, pages, numa_nodes);
  places.resize((bytes + segment_bytes - 1) / segment_bytes);
  for (size_t segment = 0; segment < places.size(); ++segment) {
    const auto& [name, kept] = places[segment];
    region.kinds_.push_back(kept           ? SegmentKind::kKept
                            : name.empty() ? SegmentKind::kOwn
                                           : SegmentKind::kRoom);
    UniqueFd& fd = region.fds_.emplace_back();
    if (kept) {
      TC_RETURN_IF_ERROR(region.mapping_.Map(segment * segment_bytes, kept.get(), 0, region.bytes_at(segment),
                                             ReservedRange::Access::kRead));
    } else {
      TC_ASSIGN_OR_RETURN(fd, region.MakeSegment(segment, pages == Pages::kHugeSetAside && name.empty()));
    }
  }
  for (size_t segment = 0; segment < places.size(); ++segment) {
    // Taken at the end, so that the caller still has them after an error, and may try again with other pages.
    if (places[segment].fd) region.fds_[segment] = std::move(places[segment].fd);
  }
  // A core file of the daemon should not hold every model.
  madvise(region.base(), bytes, MADV_DONTDUMP);
  return region;
}

uint64_t SharedRegion::bytes_at(size_t segment) const {
  return std::min(segment_bytes_, bytes() - segment * segment_bytes_);
}

absl::StatusOr<UniqueFd> SharedRegion::MakeSegment(size_t segment, bool set_aside) {
  const uint64_t bytes = bytes_at(segment);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (set_aside ? MFD_HUGETLB | kHuge2MiB : 0);
  UniqueFd fd(memfd_create(kName, flags));
  if (!fd) return ErrnoStatus(errno, "memfd_create for", Describe(this->bytes()));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, "ftruncate for", Describe(this->bytes()));
  }
  // Mapped before it is sealed: FUTURE_WRITE forbids each later mapping for writing.
  TC_RETURN_IF_ERROR(
      mapping_.Map(segment * segment_bytes_, fd.get(), 0, bytes, ReservedRange::Access::kWrite));
  if (!numa_nodes_.empty()) {
    PreferNumaNode(base() + segment * segment_bytes_, bytes, numa_nodes_[segment % numa_nodes_.size()]);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kPoolSeals) != 0) {
    return ErrnoStatus(errno, "seal",
                       absl::StrCat(Describe(this->bytes()), " (the seal needs Linux 5.1 or later)"));
  }
  return fd;
}

absl::Status SharedRegion::Replace(size_t segment) {
  absl::StatusOr<UniqueFd> made = MakeSegment(segment, pages_ == Pages::kHugeSetAside);
  // Another process may still have the huge pages of the one that goes.
  if (!made.ok() && pages_ == Pages::kHugeSetAside) made = MakeSegment(segment, /*set_aside=*/false);
  TC_RETURN_IF_ERROR(made.status());
  // The number stays, since segments() has given it out. dup3 closes the kept segment and puts the new one
  // under its number in one step. MakeSegment has mapped the new one over the old by then.
  if (dup3(made->get(), fds_[segment].get(), O_CLOEXEC) < 0) return ErrnoStatus(errno, "dup3 for", kName);
  madvise(base() + segment * segment_bytes_, bytes_at(segment), MADV_DONTDUMP);
  return absl::OkStatus();
}

// Each thread takes the next step of the region until none is left. The number of running threads falls to
// zero at the end, after an error and after stop_ alike, and Wait sleeps for that.
Prefaulter::Prefaulter(const SharedRegion& region, int threads) : region_(region) {
  for (int i = 0; i < threads; ++i) {
    // Under the lock, so that no thread ends before it is counted.
    absl::MutexLock lock(&mutex_);
    try {
      threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      LOG(ERROR) << "pre-fault " << Describe(region.bytes()) << ": only " << i << " of " << threads
                 << " threads can be started (" << error.what() << "), so "
                 << (i == 0 ? "pages appear at first touch" : "pre-faulting takes longer")
                 << "; raise the limit of threads (`ulimit -u`)";
      return;
    }
    ++running_;
  }
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
      if (!stop_.exchange(true)) LOG(ERROR) << status.message() << "; the other pages appear at first touch";
      break;
    }
    // Steps end in any order, so the last one is found by the sum.
    if (populated_bytes_.fetch_add(bytes) + bytes == region_.bytes()) {
      complete_.store(true, std::memory_order_release);
    }
  }
  absl::MutexLock lock(&mutex_);
  --running_;
}

absl::Status Prefaulter::Populate(uint64_t offset, uint64_t bytes) {
  while (bytes > 0) {
    const size_t segment = offset / region_.segment_bytes();
    const uint64_t here = std::min(bytes, (segment + 1) * region_.segment_bytes() - offset);
    // Kept segments have their pages, and room for them is replaced before anything is written there.
    if (region_.first_kind(segment) == SegmentKind::kOwn) {
      TC_RETURN_IF_ERROR(PopulateIn(segment, offset, here));
    }
    offset += here;
    bytes -= here;
  }
  return absl::OkStatus();
}

absl::Status Prefaulter::PopulateIn(size_t segment, uint64_t offset, uint64_t bytes) {
  // First, since collapsing small pages into a huge one would have to copy them. Where the kernel makes no
  // huge page, the next call makes ordinary ones.
  if (region_.pages() == SharedRegion::Pages::kHugeWhereMade) AskForHugePages(region_.base() + offset, bytes);
  int result;
  do {
    result = madvise(region_.base() + offset, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN) && !stop_);
  if (result == 0 || stop_) return absl::OkStatus();
  // An older kernel: give the file its pages, which is the slow part; mapping them at first touch costs
  // little. A write to each page from here would race with the pool's other users.
  const int error = errno == EINVAL ? PopulateFile(segment, offset, bytes) : errno;
  if (error == 0 || stop_) return absl::OkStatus();
  return ErrnoStatus(
      error, "pre-fault",
      absl::StrCat("bytes ", offset, " to ", offset + bytes, " of ", Describe(region_.bytes())));
}

int Prefaulter::PopulateFile(size_t segment, uint64_t offset, uint64_t bytes) {
  const auto begin = static_cast<off_t>(offset - segment * region_.segment_bytes());
  while (!stop_ && fallocate(region_.fd(segment), 0, begin, static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace tensorcast
