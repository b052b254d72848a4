#include "tools/workshop/bench/yardsticks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {
namespace {

constexpr size_t kReadBytes = size_t{16} << 20;

struct OpenedFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

absl::StatusOr<OpenedFile> OpenFile(const std::string& path) {
  OpenedFile file{.fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))};
  struct stat about;
  if (!file.fd || fstat(file.fd.get(), &about) != 0) return ErrnoStatus(errno, "open", path);
  file.bytes = static_cast<uint64_t>(about.st_size);
  return file;
}

absl::StatusOr<uint64_t> BytesInPageCache(const OpenedFile& file, const std::string& path) {
  if (file.bytes == 0) return 0;
  void* mapping = mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED, file.fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "map", path);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((file.bytes + page - 1) / page);
  const int failed = mincore(mapping, file.bytes, present.data());
  const int error = errno;
  munmap(mapping, file.bytes);
  if (failed != 0) return ErrnoStatus(error, "mincore", path);
  return page *
         static_cast<uint64_t>(std::count_if(present.begin(), present.end(), [](auto p) { return p & 1; }));
}

absl::StatusOr<uint64_t> ReadAll(const OpenedFile& file, std::byte* to, size_t step, bool keep,
                                 const std::string& path) {
  uint64_t done = 0;
  while (done < file.bytes) {
    const ssize_t got =
        read(file.fd.get(), keep ? to + done : to, std::min<uint64_t>(step, file.bytes - done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return got < 0 ? ErrnoStatus(errno, "read", path) : absl::DataLossError(path + " became shorter");
    }
    done += static_cast<uint64_t>(got);
  }
  return done;
}

}  // namespace

double PlainCopy::GbPerSecond() {
  const SteadyTime start = SteadyNow();
  std::memcpy(to_.data(), from_.data(), from_.size());
  const absl::Duration elapsed = SteadyNow() - start;
  // What was copied is looked at, or the compiler might drop the copy.
  volatile std::byte seen = to_[to_.size() / 2];
  (void)seen;
  return bench::GbPerSecond(from_.size(), elapsed);
}

absl::StatusOr<double> ReadIntoFreshMemory(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const OpenedFile file, OpenFile(path));
  const SteadyTime start = SteadyNow();
  void* memory = mmap(nullptr, file.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map memory for", path);
  const absl::StatusOr<uint64_t> read =
      ReadAll(file, static_cast<std::byte*>(memory), kReadBytes, true, path);
  const absl::Duration elapsed = SteadyNow() - start;
  munmap(memory, file.bytes);
  TC_RETURN_IF_ERROR(read.status());
  return GbPerSecond(*read, elapsed);
}

absl::StatusOr<uint64_t> DropFromPageCache(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const OpenedFile file, OpenFile(path));
  // Only clean pages can be dropped.
  if (fsync(file.fd.get()) != 0) return ErrnoStatus(errno, "sync", path);
  const int error = posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (error != 0) return ErrnoStatus(error, "drop from the page cache", path);
  return BytesInPageCache(file, path);
}

absl::Status WarmPageCache(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const OpenedFile file, OpenFile(path));
  std::vector<std::byte> buffer(kReadBytes);
  return ReadAll(file, buffer.data(), buffer.size(), false, path).status();
}

}  // namespace tensorcast::bench
