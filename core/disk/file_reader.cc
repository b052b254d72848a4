#include "core/disk/file_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/packed_format.h"

namespace tensorcast {
namespace {

// For files of another user mincore(2) claims that every page is cached. After so many claims
// that were wrong it is not asked again; each costs a little needless read-ahead.
constexpr int kFalseHitsAllowed = 4;

UniqueFd OpenDirect(int fd) {
  // The same file, though it be renamed or removed, in another mode.
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

// Removing a file's last name changes its ctime, and no byte of it: it may be read to its end.
absl::Status CheckSame(const FileIdentity& was, const struct stat& info) {
  FileIdentity is = IdentityOf(was.path, info);
  if (info.st_nlink == 0) is.ctime_ns = was.ctime_ns;
  if (is == was) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      was.path, " changed while it was read, or since it was imported: ", DescribeChange(was, is),
      "; import it again"));
}

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPackedAlignment == 0; }

absl::StatusOr<struct stat> StatRegularFile(FileIo* io, int fd, const std::string& path) {
  struct stat info;
  if (io->Stat(fd, &info) != 0) return FileError(errno, "stat of", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileReader>> FileReader::Of(OpenedFile file, FileIo* io) {
  TC_ASSIGN_OR_RETURN(const struct stat info, StatRegularFile(io, file.fd.get(), file.identity.path));
  TC_RETURN_IF_ERROR(CheckSame(file.identity, info));
  const int raw = file.fd.get();
  return std::unique_ptr<FileReader>(new FileReader(std::move(file.identity), std::move(file.fd), raw, io));
}

absl::StatusOr<std::unique_ptr<FileReader>> FileReader::FromDescriptor(std::string name, int fd, FileIo* io) {
  TC_ASSIGN_OR_RETURN(const struct stat info, StatRegularFile(io, fd, name));
  FileIdentity identity = IdentityOf(std::move(name), info);
  return std::unique_ptr<FileReader>(new FileReader(std::move(identity), UniqueFd(), fd, io));
}

FileReader::FileReader(FileIdentity identity, UniqueFd owned, int fd, FileIo* io)
    : identity_(std::move(identity)),
      owned_fd_(std::move(owned)),
      fd_(fd),
      io_(io),
      direct_fd_(OpenDirect(fd)),
      use_direct_(static_cast<bool>(direct_fd_)) {
  if (identity_.bytes == 0) return;
  void* pages = mmap(nullptr, identity_.bytes, PROT_READ, MAP_SHARED, fd_, 0);
  if (pages != MAP_FAILED) pages_ = pages;
}

FileReader::~FileReader() {
  if (pages_ != nullptr) munmap(pages_, identity_.bytes);
}

bool FileReader::SeemsCached(uint64_t offset, uint64_t bytes) const {
  if (pages_ == nullptr || false_hits_.load(std::memory_order_relaxed) >= kFalseHitsAllowed) return false;
  if (bytes == 0 || offset >= identity_.bytes || bytes > identity_.bytes - offset) return false;
  const uint64_t begin = AlignDown(offset);
  const uint64_t length = offset + bytes - begin;
  std::vector<unsigned char> resident(AlignUp(length) / kPackedAlignment);
  if (mincore(static_cast<char*>(pages_) + begin, length, resident.data()) != 0) return false;
  return std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; });
}

uint64_t FileReader::ReadCached(uint64_t offset, HostSpan destination) {
  const ssize_t size = io_->ReadCached(fd_, destination, offset);
  if (size > 0) return static_cast<uint64_t>(size);
  false_hits_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

absl::Status FileReader::Read(uint64_t offset, HostSpan destination, uint64_t needed) {
  const bool aligned = offset % kPackedAlignment == 0 && destination.size() % kPackedAlignment == 0 &&
                       IsAligned(destination.data());
  uint64_t done = 0;
  while (done < needed) {
    // A direct read that ended in the middle of a block cannot be continued as one.
    const bool direct_now = aligned && done % kPackedAlignment == 0 && direct();
    const ssize_t size =
        io_->Read(direct_now ? direct_fd_.get() : fd_, destination.subspan(done), offset + done);
    if (size > 0) {
      done += static_cast<uint64_t>(size);
    } else if (size == 0) {
      return EndedEarly(offset + done);
    } else if (errno == EINVAL && direct_now) {
      use_direct_.store(false, std::memory_order_relaxed);  // opened directly, but does not read so
    } else if (errno != EINTR) {
      return FileError(errno, absl::StrCat("reading ", needed - done, " bytes at ", offset + done, " of"),
                       identity_.path);
    }
  }
  return absl::OkStatus();
}

absl::Status FileReader::EndedEarly(uint64_t at) const {
  TC_RETURN_IF_ERROR(CheckUnchanged());
  return absl::DataLossError(absl::StrCat(identity_.path, " ended at byte ", at, " of ", identity_.bytes,
                                          "; check the file system, or import it again"));
}

absl::Status FileReader::CheckUnchanged() const {
  struct stat info;
  if (io_->Stat(fd_, &info) != 0) return FileError(errno, "stat of", identity_.path);
  return CheckSame(identity_, info);
}

}  // namespace tensorcast
