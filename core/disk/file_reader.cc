#include "core/disk/file_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/mapped_pages.h"
#include "core/source/bounce_buffers.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {
namespace {

// For files of another user mincore(2) claims that every page is cached. After so many claims
// that were wrong it is not asked again; each costs a little needless read-ahead.
constexpr int kFalseHitsAllowed = 4;

UniqueFd OpenDirect(int fd) {
  // The same file, though it be renamed or removed, in another mode.
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

bool IsAligned(uint64_t number) { return number % kBlockBytes == 0; }

absl::StatusOr<struct stat> StatRegularFile(FileIo* io, int fd, const std::string& path) {
  struct stat info;
  if (io->Stat(fd, &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": the path is not a regular file; name a file"));
  }
  return info;
}

}  // namespace

absl::StatusOr<std::shared_ptr<FileReader>> FileReader::Of(std::string path, UniqueFd fd,
                                                           const FileReaderOptions& options) {
  TC_ASSIGN_OR_RETURN(std::shared_ptr<FileReader> reader,
                      Borrow(std::move(path), fd.get(), nullptr, options));
  // Owned only now: after an error of Borrow the argument closes the descriptor.
  reader->owned_fd_ = std::move(fd);
  return reader;
}

absl::StatusOr<std::shared_ptr<FileReader>> FileReader::Borrow(std::string path, int fd,
                                                               std::shared_ptr<void> keep_alive,
                                                               const FileReaderOptions& options) {
  TC_ASSIGN_OR_RETURN(const struct stat info, StatRegularFile(options.io, fd, path));
  std::shared_ptr<FileReader> reader(new FileReader(std::move(path), info, fd, options));
  reader->keep_alive_ = std::move(keep_alive);
  return reader;
}

// The file is open twice: by the descriptor that was given, for reads through the page cache, and for direct
// reads. A file that a client opened may not be open to this process, so the second may be missing.
FileReader::FileReader(std::string path, const struct stat& info, int fd, const FileReaderOptions& options)
    : identity_(IdentityOf(std::move(path), info)),
      kind_(options.kind),
      io_(options.io),
      fd_(fd),
      direct_fd_(OpenDirect(fd)),
      traits_({.max_concurrency = options.max_concurrency,
               .read_bytes = options.read_bytes,
               .traceable = UntraceableFileSystemOf(fd).empty(),
               .may_hang = MayHang(fd)}),
      // Some file systems open no file directly: then all goes through the page cache.
      use_direct_(static_cast<bool>(direct_fd_)) {
  if (identity_.bytes == 0) return;
  // The mapping outlives a truncation of the file, and is safe all the same: only mincore looks at it.
  void* pages = mmap(nullptr, identity_.bytes, PROT_READ, MAP_SHARED, fd_, 0);
  if (pages != MAP_FAILED) pages_ = pages;
}

FileReader::~FileReader() {
  if (pages_ != nullptr) munmap(pages_, identity_.bytes);
}

uint64_t FileReader::alignment() const {
  return use_direct_.load(std::memory_order_relaxed) ? kBlockBytes : 1;
}

bool FileReader::SeemsCached(uint64_t offset, uint64_t bytes) const {
  if (pages_ == nullptr || false_hits_.load(std::memory_order_relaxed) >= kFalseHitsAllowed) return false;
  if (bytes == 0 || !CheckObjectRange(identity_, offset, bytes).ok()) return false;
  // mincore takes addresses of whole pages alone.
  const uint64_t begin = AlignDown(offset);
  const uint64_t length = offset + bytes - begin;
  std::vector<unsigned char> resident(AlignUp(length) / kBlockBytes);
  if (mincore(static_cast<char*>(pages_) + begin, length, resident.data()) != 0) return false;
  return std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; });
}

uint64_t FileReader::ReadCached(uint64_t offset, HostSpan destination) {
  const ssize_t size = io_->ReadCached(fd_, destination, offset);
  if (size > 0) return static_cast<uint64_t>(size);
  // SeemsCached said that the pages were there, and they were not.
  false_hits_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

absl::Status FileReader::Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                              uint64_t needed) {
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("read ", identity_.uri)));
  TC_RETURN_IF_ERROR(CheckObjectRange(identity_, offset, needed));
  // Direct I/O takes whole blocks at block addresses; other reads go through the page cache.
  const bool aligned = IsAligned(offset) && IsAligned(destination.size()) &&
                       IsAligned(reinterpret_cast<uintptr_t>(destination.data()));
  uint64_t done = 0;
  while (done < needed) {
    // A direct read that ended in the middle of a block cannot be continued as one.
    const bool direct = aligned && IsAligned(done) && use_direct_.load(std::memory_order_relaxed);
    // All of the destination is offered, though less is needed: the last block of a file is read whole.
    const ssize_t size = io_->Read(direct ? direct_fd_.get() : fd_, destination.subspan(done), offset + done);
    if (size > 0) {
      done += static_cast<uint64_t>(size);
    } else if (size == 0) {
      return EndedEarly(offset + done);
    } else if (errno == EINVAL && direct) {
      use_direct_.store(false, std::memory_order_relaxed);  // opened directly, but does not read so
    } else if (errno != EINTR) {
      return FileError(errno, absl::StrCat("read ", needed - done, " bytes at offset ", offset + done, " of"),
                       identity_.uri);
    }
  }
  return absl::OkStatus();
}

absl::Status FileReader::EndedEarly(uint64_t at) const {
  // A file that was cut short has changed. Only one that has not is damaged.
  TC_RETURN_IF_ERROR(CheckSame());
  return absl::DataLossError(
      absl::StrCat("read ", identity_.uri, ": the file ended at byte ", at, " of ", identity_.bytes,
                   " bytes; check the file system, and import or put the model again"));
}

absl::Status FileReader::CheckUnchanged(const RequestContext& /*context*/) { return CheckSame(); }

absl::Status FileReader::CheckSame() const {
  struct stat info;
  // By the descriptor: what lies at the path by now does not matter.
  if (io_->Stat(fd_, &info) != 0) return FileError(errno, "stat", identity_.uri);
  ObjectIdentity now = IdentityOf(identity_.uri, info);
  if (now == identity_) return absl::OkStatus();
  // Removing a file's last name changes its ctime, and no byte of it: it may be read to its end.
  std::optional<FileVersion> version = FileVersion::Parse(now.version);
  if (info.st_nlink == 0 && version.has_value()) {
    version->ctime_ns = FileVersion::Parse(identity_.version)->ctime_ns;
    now.version = version->Text();
    if (now == identity_) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("read ", identity_.uri, ": the file changed while it was read, or since its import: ",
                   DescribeChange(identity_, now), "; import or put the model again"));
}

void FileReader::NoteChunk(absl::Duration took, uint64_t bytes, bool ok) const {
  if (!ok) return otel::metrics::kDiskErrors.Add(1, {"read"});
  otel::metrics::kDiskOperationSeconds.Record(absl::ToDoubleSeconds(took), {"read"});
  otel::metrics::kDiskReadBytes.Add(bytes, {kind_});
}

}  // namespace tensorcast
