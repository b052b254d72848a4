#include "core/disk/offered_files.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/mapped_pages.h"

namespace tensorcast {
namespace {

constexpr std::string_view kMemoryFile = "/memfd:";  // how the kernel names one

// Not in every version of the kernel's headers.
constexpr uint64_t kXfsMagic = 0x58465342;
constexpr uint64_t kZfsMagic = 0x2fc12fc1;
constexpr std::array<uint64_t, 8> kLocalFileSystems = {EXT4_SUPER_MAGIC,      kXfsMagic,  BTRFS_SUPER_MAGIC,
                                                       F2FS_SUPER_MAGIC,      kZfsMagic,  TMPFS_MAGIC,
                                                       OVERLAYFS_SUPER_MAGIC, RAMFS_MAGIC};

std::string PathOf(int fd) {
  std::error_code unknown;
  std::string path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), unknown).string();
  return unknown ? "a file that was offered" : path;
}

// What is there instead of a regular file.
std::string_view KindOf(const struct stat& info, std::string_view path) {
  if (S_ISDIR(info.st_mode)) return "a folder";
  if (S_ISFIFO(info.st_mode)) return "a FIFO";
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode)) return "a device";
  if (S_ISSOCK(info.st_mode)) return "a socket";
  if (!S_ISREG(info.st_mode)) return "no file at all";
  if (info.st_nlink == 0 && absl::StartsWith(path, kMemoryFile)) return "memory of a process";
  return "";
}

absl::StatusOr<OpenedFile> Describe(UniqueFd fd) {
  std::string path = PathOf(fd.get());
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return FileError(errno, "stat", path);
  if (const std::string_view kind = KindOf(info, path); !kind.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", kind, ", not a regular file; name a .safetensors file"));
  }
  return OpenedFile{IdentityOf(std::move(path), info), std::move(fd)};
}

}  // namespace

absl::StatusOr<std::vector<OpenedFile>> DescribeOfferedFiles(const RequestContext& context,
                                                             std::vector<UniqueFd> fds) {
  std::vector<OpenedFile> files;
  files.reserve(fds.size());
  for (UniqueFd& fd : fds) {
    TC_ASSIGN_OR_RETURN(OpenedFile file, Describe(std::move(fd)));
    TC_RETURN_IF_ERROR(WriteOutMappedPages(context, file));
    files.push_back(std::move(file));
  }
  return files;
}

bool MayHang(std::span<const OpenedFile> files) {
  return std::ranges::any_of(files, [](const OpenedFile& file) {
    struct statfs system;
    return fstatfs(file.fd.get(), &system) != 0 ||
           std::ranges::find(kLocalFileSystems, static_cast<uint64_t>(system.f_type)) ==
               kLocalFileSystems.end();
  });
}

}  // namespace tensorcast
