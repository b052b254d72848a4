#include "tests/stand_ins/cuda/host_gpus.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::stand_ins {
namespace {

constexpr uint32_t kEntries = 4096;
constexpr uint64_t kMagic = 0x3155504748434354;
constexpr int kJunk = 0xC7;

struct Entry {
  uint64_t id = 0;  // 0: not in use
  int32_t gpu = 0;
  int32_t pid = 0;
  int32_t fd = 0;
  uint64_t inode = 0;  // of the memfd: a later file of the same number is another
  uint64_t bytes = 0;
};

std::string PathOf(const Entry& entry) { return absl::StrCat("/proc/", entry.pid, "/fd/", entry.fd); }

bool IsAlive(const Entry& entry) {
  struct stat found;
  if (stat(PathOf(entry).c_str(), &found) == 0) return found.st_ino == entry.inode;
  return errno == EACCES;  // another user's process, with files that this one may not see
}

// Importers hold a lock on the memory for as long as they have it open. It goes with their process.
bool TakeLock(int fd, int16_t type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

// The content of the host's file. `entries` and `last_id` change under Lock; the rest never changes.
struct HostGpus::Shared {
  uint64_t magic = kMagic;
  int32_t gpus = 0;
  uint64_t bytes_each = 0;
  GpuUuid uuids[kMaxGpus];
  uint64_t last_id = 0;
  Entry entries[kEntries];
};

// The file's lock is between processes: it belongs to an opening, of which there is one for each hold. The
// mutex is between threads, where ThreadSanitizer looks for it.
class HostGpus::Lock {
 public:
  explicit Lock(const HostGpus& host)
      : threads_(&host.mutex_),
        fd_(open(absl::StrCat("/proc/self/fd/", host.fd_.get()).c_str(), O_RDWR | O_CLOEXEC)) {
    while (flock(fd_.get(), LOCK_EX) != 0) {
      if (errno != EINTR) Violation("cuda", "the file of the host's GPUs cannot be locked");
    }
  }

 private:
  const absl::MutexLock threads_;
  const UniqueFd fd_;
};

absl::Status MakeHostGpus(const std::string& path, int gpus, uint64_t bytes_each) {
  if (gpus < 1 || gpus > kMaxGpus) {
    return absl::InvalidArgumentError(absl::StrCat("a host of ", gpus, " GPUs: from 1 to ", kMaxGpus));
  }
  auto shared = std::make_unique<HostGpus::Shared>();
  shared->gpus = gpus;
  shared->bytes_each = bytes_each;
  std::random_device random;
  for (GpuUuid& uuid : shared->uuids) {
    for (char& c : uuid) c = static_cast<char>(random());
  }
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, "making the GPUs of a host in", path);
  // GPUs are there for every user of a host.
  if (fchmod(fd.get(), 0666) != 0) return ErrnoStatus(errno, "opening to all", path);
  const auto* bytes = reinterpret_cast<const char*>(shared.get());
  if (write(fd.get(), bytes, sizeof(*shared)) != static_cast<ssize_t>(sizeof(*shared))) {
    return ErrnoStatus(errno, "writing", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StandInHost>> StandInHost::Make(int gpus, uint64_t bytes_each) {
  const char* const folder = std::getenv("TMPDIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/stand-in-gpus-", getpid());
  TC_RETURN_IF_ERROR(MakeHostGpus(path, gpus, bytes_each));
  setenv(kGpusVariable, path.c_str(), /*overwrite=*/1);
  return std::unique_ptr<StandInHost>(new StandInHost(path));
}

bool StandInHost::IsThere() { return std::getenv(kGpusVariable) != nullptr; }

StandInHost::~StandInHost() { unlink(path_.c_str()); }

absl::StatusOr<std::unique_ptr<HostGpus>> HostGpus::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "opening the host's GPUs in", path);
  void* const mapping = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  auto* const shared = static_cast<Shared*>(mapping);
  if (shared->magic != kMagic) {
    munmap(mapping, sizeof(Shared));
    return absl::InvalidArgumentError(absl::StrCat(path, " is not the file of a host's GPUs"));
  }
  return std::unique_ptr<HostGpus>(new HostGpus(std::move(fd), shared));
}

HostGpus::~HostGpus() { munmap(shared_, sizeof(Shared)); }

int HostGpus::count() const { return shared_->gpus; }
GpuUuid HostGpus::uuid(int gpu) const { return shared_->uuids[gpu]; }
uint64_t HostGpus::bytes() const { return shared_->bytes_each; }

// Frees the entries of ended processes as it counts: no process has to do it when another is killed.
uint64_t HostGpus::UsedLocked(int gpu) {
  uint64_t used = 0;
  for (Entry& entry : shared_->entries) {
    if (entry.id == 0 || entry.gpu != gpu) continue;
    if (IsAlive(entry)) {
      used += entry.bytes;
    } else {
      entry = Entry();
    }
  }
  return used;
}

uint64_t HostGpus::free_bytes(int gpu) {
  const Lock lock(*this);
  return bytes() - UsedLocked(gpu);
}

absl::StatusOr<std::shared_ptr<GpuMemory>> HostGpus::Allocate(int gpu, uint64_t bytes) {
  auto memory = std::shared_ptr<GpuMemory>(new GpuMemory());
  memory->gpu_ = gpu;
  memory->bytes_ = bytes;
  {
    // From the count of free bytes until the entry is in the list, so that two processes do not get the same
    // bytes.
    const Lock lock(*this);
    const uint64_t used = UsedLocked(gpu);
    if (bytes > this->bytes() - used) {
      return absl::ResourceExhaustedError(absl::StrCat(used, " of ", this->bytes(), " bytes are in use"));
    }
    memory->fd_ = UniqueFd(memfd_create("gpu", MFD_CLOEXEC));
    if (!memory->fd_ || ftruncate(memory->fd_.get(), static_cast<off_t>(bytes)) != 0) {
      return ErrnoStatus(errno, "making", "memory of a GPU");
    }
    while (memory->entry_ < kEntries && shared_->entries[memory->entry_].id != 0) ++memory->entry_;
    if (memory->entry_ == kEntries) Violation("cuda", "more allocations than this stand-in has room for");
    struct stat file;
    if (fstat(memory->fd_.get(), &file) != 0) return ErrnoStatus(errno, "asking for", "memory of a GPU");
    memory->id_ = ++shared_->last_id;
    shared_->entries[memory->entry_] = {.id = memory->id_,
                                        .gpu = gpu,
                                        .pid = getpid(),
                                        .fd = memory->fd_.get(),
                                        .inode = file.st_ino,
                                        .bytes = bytes};
  }
  TC_RETURN_IF_ERROR(memory->Map());
  std::memset(memory->view_, kJunk, bytes);
  return memory;
}

absl::Status GpuMemory::Map() {
  void* const view = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (view == MAP_FAILED) return ErrnoStatus(errno, "mapping", "memory of a GPU");
  view_ = static_cast<std::byte*>(view);
  void* const range = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoStatus(errno, "reserving", "addresses of a GPU");
  range_ = range;
  return absl::OkStatus();
}

GpuMemory::~GpuMemory() {
  if (view_ != nullptr) munmap(view_, bytes_);
  if (range_ != nullptr) munmap(range_, bytes_);
}

void HostGpus::Free(const GpuMemory& memory) {
  const Lock lock(*this);
  // An importer's lock for reading excludes this one for writing.
  if (!TakeLock(memory.fd_.get(), F_WRLCK)) {
    Violation("cuda",
              "memory is freed that another process has open: its handle is to be closed there first");
  }
  shared_->entries[memory.entry_] = Entry();
}

GpuMemoryHandle HostGpus::Export(const GpuMemory& memory) const {
  return {.gpu = uuid(memory.gpu_), .entry = memory.entry_, .id = memory.id_};
}

absl::StatusOr<std::shared_ptr<GpuMemory>> HostGpus::Import(const GpuMemoryHandle& handle) {
  if (handle.entry >= kEntries || handle.id == 0) return absl::InvalidArgumentError("not a handle");
  auto memory = std::shared_ptr<GpuMemory>(new GpuMemory());
  {
    const Lock lock(*this);
    const Entry& entry = shared_->entries[handle.entry];
    if (handle.id > shared_->last_id) return absl::InvalidArgumentError("not a handle");
    if (entry.id != handle.id || !IsAlive(entry)) return absl::NotFoundError("the memory is gone");
    if (shared_->uuids[entry.gpu] != handle.gpu) return absl::InvalidArgumentError("of another GPU");
    memory->gpu_ = entry.gpu;
    memory->bytes_ = entry.bytes;
    memory->imported_ = true;
    memory->entry_ = handle.entry;
    memory->id_ = handle.id;
    memory->fd_ = UniqueFd(open(PathOf(entry).c_str(), O_RDWR | O_CLOEXEC));
    if (!memory->fd_) return ErrnoStatus(errno, "opening", PathOf(entry));
    if (!TakeLock(memory->fd_.get(), F_RDLCK)) return absl::NotFoundError("the memory is being freed");
  }
  TC_RETURN_IF_ERROR(memory->Map());
  return memory;
}

}  // namespace tensorcast::stand_ins
