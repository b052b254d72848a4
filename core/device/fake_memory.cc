#include "core/device/fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// To make 1 GiB resident takes one thread more than half a second, which is most of a transfer into it.
constexpr uint64_t kBytesPerThread = uint64_t{32} << 20;
constexpr unsigned kMaxThreads = 4;
constexpr uint64_t kPageBytes = uint64_t{64} << 10;  // the largest that a host has

std::string MemfdName(std::string_view uuid) { return absl::StrCat("tensorcast-fake-device-", uuid); }

// True when this /proc descriptor link leads to the memfd that carries the UUID in its name.
bool LeadsTo(const std::string& link, std::string_view uuid) {
  char target[256];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return length > 0 &&
         std::string_view(target, length) == absl::StrCat("/memfd:", MemfdName(uuid), " (deleted)");
}

absl::Status Gone(const FakeIpcFields& fields) {
  return absl::NotFoundError(absl::StrCat(
      "open fake device memory ", fields.memory, " of process ", fields.pid,
      ": the memory was freed, or the process has ended; get a new handle from the exporting process"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<FakeMemory>> FakeMemory::Create(uint64_t bytes) {
  const std::string uuid = NewUuid();
  const int fd = memfd_create(MemfdName(uuid).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ErrnoStatus(errno, "memfd_create for", "fake device memory");
  std::shared_ptr<FakeMemory> memory(new FakeMemory(fd, bytes, uuid));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, "size", absl::StrCat("fake device memory of ", bytes, " bytes"));
  }
  TC_RETURN_IF_ERROR(memory->Map());
  TC_RETURN_IF_ERROR(memory->MakeResident());
  return memory;
}

absl::StatusOr<std::shared_ptr<FakeMemory>> FakeMemory::Open(const FakeIpcFields& fields, uint64_t bytes) {
  const std::string path = absl::StrCat("/proc/", fields.pid, "/fd/", fields.fd);
  // Before the open, since opening whatever a forged handle names may have effects; after it, since the
  // exporter may have reused the number in between.
  if (!LeadsTo(path, fields.memory)) return Gone(fields);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? Gone(fields) : ErrnoStatus(errno, "open", path);
  std::shared_ptr<FakeMemory> memory(new FakeMemory(fd, bytes, fields.memory));
  if (!LeadsTo(absl::StrCat("/proc/self/fd/", fd), fields.memory)) return Gone(fields);
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat", path);
  if (bytes == 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "open fake device memory ", fields.memory, ": the handle says ", bytes, " bytes, and the memory has ",
        info.st_size, " bytes; get a new handle from the exporting process"));
  }
  TC_RETURN_IF_ERROR(memory->Map());
  return memory;
}

absl::Status FakeMemory::Map() {
  void* mapping = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapping == MAP_FAILED) {
    return ErrnoStatus(errno, "mmap", absl::StrCat("fake device memory of ", bytes_, " bytes"));
  }
  data_ = static_cast<std::byte*>(mapping);
  return absl::OkStatus();
}

// Several threads, each with a part of whole pages. The part of this thread is the first one; parts for which
// no thread could be started are done by this thread, too.
absl::Status FakeMemory::MakeResident() {
  const uint64_t threads = std::clamp<uint64_t>(
      bytes_ / kBytesPerThread, 1, std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
  const uint64_t each = (bytes_ / threads + kPageBytes) / kPageBytes * kPageBytes;
  std::vector<absl::Status> populated(threads);
  const auto populate = [&](uint64_t part) {
    const uint64_t offset = part * each;
    if (offset < bytes_) populated[part] = Populate(offset, std::min(each, bytes_ - offset));
  };
  std::vector<std::thread> others;
  uint64_t part = 1;
  try {
    for (; part < threads; ++part) others.emplace_back(populate, part);
  } catch (const std::system_error&) {
    // Without further threads it takes longer.
  }
  for (; part < threads; ++part) populate(part);
  populate(0);
  for (std::thread& other : others) other.join();
  for (const absl::Status& status : populated) TC_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status FakeMemory::Populate(uint64_t offset, uint64_t bytes) {
  int error = 0;
  do {
    error = madvise(data_ + offset, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == EINVAL) {  // a kernel before 5.14: the pages at least, without their entries in this process
    do {
      error = fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
  }
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("allocate ", bytes_, " bytes of fake device memory: the host has too little memory (",
                   std::generic_category().message(error), "); make daemon.fake_device_memory smaller"));
}

FakeMemory::~FakeMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close(fd_);
}

FakeIpcFields FakeMemory::ipc_fields() const {
  return {.process = ThisProcessToken(),
          .pid = static_cast<uint32_t>(getpid()),
          .fd = static_cast<uint32_t>(fd_),
          .memory = uuid_};
}

}  // namespace tensorcast
