#include "core/disk/offered_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/file_reader.h"
#include "core/disk/mapped_pages.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMemoryFile = "/memfd:";  // how the kernel names one

std::string PathOf(int fd) {
  std::error_code unknown;
  std::string path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), unknown).string();
  return unknown ? "an offered file" : path;
}

// The kind of what the descriptor leads to, for a message; empty for a regular file.
std::string_view KindOf(const struct stat& info, std::string_view path) {
  if (S_ISDIR(info.st_mode)) return "a folder";
  if (S_ISFIFO(info.st_mode)) return "a FIFO";
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode)) return "a device";
  if (S_ISSOCK(info.st_mode)) return "a socket";
  if (!S_ISREG(info.st_mode)) return "a kernel object";
  // To fstat a memfd is a regular file: only its name tells.
  if (info.st_nlink == 0 && absl::StartsWith(path, kMemoryFile)) return "memory of a process";
  return "";
}

absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context, UniqueFd fd) {
  std::string path = PathOf(fd.get());
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return FileError(errno, "stat", path);
  if (const std::string_view kind = KindOf(info, path); !kind.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", path, ": the path is ", kind, ", not a regular file; pass a regular file"));
  }
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> file, FileReader::Of(std::move(path), std::move(fd)));
  TC_RETURN_IF_ERROR(WriteOutMappedPages(context, *file));
  return file;
}

}  // namespace

absl::StatusOr<ObjectReaders> OpenOfferedFiles(const RequestContext& context, std::vector<UniqueFd> fds) {
  ObjectReaders files;
  for (UniqueFd& fd : fds) {
    TC_ASSIGN_OR_RETURN(files.emplace_back(), Open(context, std::move(fd)));
  }
  return files;
}

}  // namespace tensorcast
