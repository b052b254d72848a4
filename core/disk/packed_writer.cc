#include "core/disk/packed_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// A partial file is made, locked and reserved (Create), filled by many threads (WriteImage), completed with
// header and manifest (Finish), and renamed by the store. Whole blocks are written directly, past the page
// cache, which would otherwise fill with a copy of the image. Other bytes go through the page cache.
bool IsAligned(ConstHostSpan span) {
  return reinterpret_cast<uintptr_t>(span.data()) % kPackedAlignment == 0 &&
         span.size() % kPackedAlignment == 0;
}

// The front of `bytes` that direct I/O takes, when it is to begin at `offset`; the rest goes to `rest`.
std::vector<ConstHostSpan> SplitDirect(uint64_t offset, std::span<const ConstHostSpan> bytes,
                                       std::vector<ConstHostSpan>& rest) {
  std::vector<ConstHostSpan> front;
  size_t i = 0;
  if (offset % kPackedAlignment == 0) {
    while (i < bytes.size() && IsAligned(bytes[i])) front.push_back(bytes[i++]);
  }
  // The whole blocks of the first span that does not end with one go the direct way, too.
  for (; i < bytes.size(); ++i) {
    ConstHostSpan span = bytes[i];
    const bool address_fits = reinterpret_cast<uintptr_t>(span.data()) % kPackedAlignment == 0;
    if (rest.empty() && offset % kPackedAlignment == 0 && address_fits && span.size() > kPackedAlignment) {
      front.push_back(span.first(AlignDown(span.size())));
      span = span.subspan(AlignDown(span.size()));
    }
    rest.push_back(span);
  }
  return front;
}

uint64_t TotalBytes(std::span<const ConstHostSpan> spans) {
  uint64_t total = 0;
  for (const ConstHostSpan& span : spans) total += span.size();
  return total;
}

// The room that packed files leave free. Without it they could fill the disk to the last block for other
// processes that write to it, and for the next start of their own daemon.
constexpr uint64_t kHeadroomBytes = uint64_t{4} << 20;

uint64_t FreeBytes(const struct statvfs& disk) { return uint64_t{disk.f_bavail} * disk.f_frsize; }

// The rest of `spans` behind their first `done` bytes, as much as one call takes (IOV_MAX pieces).
std::vector<iovec> Rest(std::span<const ConstHostSpan> spans, uint64_t done) {
  std::vector<iovec> rest;
  for (const ConstHostSpan& span : spans) {
    if (done >= span.size()) {
      done -= span.size();
      continue;
    }
    rest.push_back({const_cast<std::byte*>(span.data()) + done, span.size() - done});
    done = 0;
    if (rest.size() == IOV_MAX) break;
  }
  return rest;
}

}  // namespace

PartialFile::PartialFile(std::string path, UniqueFd fd, const PackedHeader& header)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      header_(header),
      manifest_bytes_max_(header.image_offset - header.manifest_offset) {}

PartialFile::~PartialFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Create(const std::string& directory,
                                                                 uint64_t image_bytes,
                                                                 uint64_t manifest_bytes_max) {
  const std::string path = absl::StrCat(directory, "/.", NewUuid(), kPartialExtension);
  // Hidden, and with another ending: no scan takes it for a packed file before it is renamed.
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
  if (!fd) return ErrnoStatus(errno, "create", path);
  PackedHeader header;
  header.image_offset = AlignUp(header.manifest_offset + manifest_bytes_max);
  header.image_bytes = image_bytes;
  std::unique_ptr<PartialFile> file(new PartialFile(path, std::move(fd), header));
  // The lock says that the writer lives (RemoveAbandonedPartials). The kernel drops it with the process.
  if (flock(file->fd_.get(), LOCK_EX | LOCK_NB) != 0) return ErrnoStatus(errno, "lock", path);
  TC_RETURN_IF_ERROR(file->Reserve());
  // A second descriptor, since O_DIRECT holds for all writes by one, and header, manifest and odd ends need
  // the other kind.
  file->direct_fd_ = UniqueFd(
      open(absl::StrCat("/proc/self/fd/", file->fd_.get()).c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT));
  file->use_direct_ = static_cast<bool>(file->direct_fd_);
  return file;
}

absl::Status PartialFile::Reserve() {
  // A file system may fill itself up before it says that there is too little, at the expense of all its
  // other users.
  struct statvfs disk;
  if (fstatvfs(fd_.get(), &disk) == 0 && disk.f_blocks > 0 &&
      FreeBytes(disk) < header_.file_bytes() + kHeadroomBytes) {
    return Failed(ENOSPC, "reserve space for");
  }
  const off_t bytes = static_cast<off_t>(header_.file_bytes());
  // Not posix_fallocate, which writes zeros where the file system cannot reserve.
  int result;
  do {
    result = fallocate(fd_.get(), 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  if (errno != EOPNOTSUPP) return Failed(errno, "reserve space for");
  // Without reservation a full disk shows when it is written.
  return ftruncate(fd_.get(), bytes) == 0 ? absl::OkStatus() : Failed(errno, "size");
}

absl::Status PartialFile::Failed(int error_number, std::string_view operation) const {
  absl::Status status = ErrnoStatus(error_number, operation, path_);
  if (!absl::IsResourceExhausted(status) && error_number != EFBIG) return status;
  // A file that is too large for its file system, or for the limit of file sizes, lacks room as well.
  if (error_number == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(
        status.message(), ": the packed file needs ", header_.file_bytes(),
        " bytes; raise the daemon's limit of file sizes (`ulimit -f`), or set daemon.disk_dir to a folder on "
        "a file system that allows larger files"));
  }
  struct statvfs disk;
  const bool known = fstatvfs(fd_.get(), &disk) == 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), ": the packed file needs ", header_.file_bytes(), " bytes",
      known ? absl::StrCat(", and the disk has ", FreeBytes(disk), " bytes free, of which ", kHeadroomBytes,
                           " must stay free")
            : "",
      "; remove artifacts from the disk tier, or set daemon.disk_dir to a folder on a larger disk"));
}

absl::Status PartialFile::WriteAll(bool direct, uint64_t offset, std::span<const ConstHostSpan> bytes) {
  const uint64_t total = TotalBytes(bytes);
  uint64_t done = 0;
  while (done < total) {
    // A direct write may end in the middle of a block, for example on a full disk. What is left of the block
    // cannot be written directly.
    const bool direct_now =
        direct && done % kPackedAlignment == 0 && use_direct_.load(std::memory_order_relaxed);
    const std::vector<iovec> rest = Rest(bytes, done);
    const ssize_t size = pwritev(direct_now ? direct_fd_.get() : fd_.get(), rest.data(),
                                 static_cast<int>(rest.size()), static_cast<off_t>(offset + done));
    if (size > 0) {
      done += static_cast<uint64_t>(size);
    } else if (size < 0 && errno == EINVAL && direct_now) {
      // The file system opens files directly but does not write so. No later write tries again.
      use_direct_.store(false, std::memory_order_relaxed);
    } else if (size == 0 || errno != EINTR) {
      return Failed(size == 0 ? EIO : errno, "write");
    }
  }
  return absl::OkStatus();
}

absl::Status PartialFile::WriteImage(uint64_t image_offset, std::span<const ConstHostSpan> bytes) {
  const uint64_t total = TotalBytes(bytes);
  if (image_offset > header_.image_bytes || total > header_.image_bytes - image_offset) {
    return absl::OutOfRangeError(absl::StrCat(
        "write ", total, " bytes at offset ", image_offset, " of an image of ", header_.image_bytes,
        " bytes to ", path_, ": the range reaches past the end of the image; write inside the image"));
  }
  const uint64_t offset = header_.image_offset + image_offset;
  std::vector<ConstHostSpan> rest;
  const std::vector<ConstHostSpan> front = SplitDirect(offset, bytes, rest);
  TC_RETURN_IF_ERROR(WriteAll(true, offset, front));
  TC_RETURN_IF_ERROR(WriteAll(false, offset + TotalBytes(front), rest));
  // Ranges do not overlap, so the sum says at the end whether all was written.
  written_.fetch_add(total);
  return absl::OkStatus();
}

absl::Status PartialFile::Finish(std::string_view manifest) {
  if (written_.load() < header_.image_bytes) {
    return absl::FailedPreconditionError(absl::StrCat("finish ", path_, ": only ", written_.load(),
                                                      " of the image's ", header_.image_bytes,
                                                      " bytes were written; write all of them first"));
  }
  if (manifest.size() > manifest_bytes_max_) {
    return absl::InvalidArgumentError(absl::StrCat("finish ", path_, ": the manifest has ", manifest.size(),
                                                   " bytes, but only ", manifest_bytes_max_,
                                                   " bytes were reserved; reserve more bytes"));
  }
  // The header comes last: until now the file does not begin like a packed file. The manifest's size is only
  // known here.
  header_.manifest_bytes = manifest.size();
  const std::string header = EncodePackedHeader(header_);
  const ConstHostSpan parts[] = {std::as_bytes(std::span(header)), std::as_bytes(std::span(manifest))};
  TC_RETURN_IF_ERROR(WriteAll(false, 0, parts));
  if (fsync(fd_.get()) != 0) return Failed(errno, "sync");
  return absl::OkStatus();
}

absl::Status PartialFile::Rename(const std::string& path) {
  if (rename(path_.c_str(), path.c_str()) != 0) return Failed(errno, absl::StrCat("make ", path, " from"));
  path_.clear();
  return absl::OkStatus();
}

void RemoveAbandonedPartials(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  // Not by a range: the operator ++ throws where the disk fails in the middle.
  for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!absl::EndsWith(path, kPartialExtension)) continue;
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its writer lives
    if (unlink(path.c_str()) == 0) LOG(INFO) << "removed " << path << ", which a writer left unfinished";
  }
}

}  // namespace tensorcast
