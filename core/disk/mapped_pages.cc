#include "core/disk/mapped_pages.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Not every version of the kernel's headers has these.
constexpr uint64_t kFuseMagic = 0x65735546;
constexpr uint64_t kXfsMagic = 0x58465342;
constexpr uint64_t kZfsMagic = 0x2fc12fc1;

// tmpfs also stands for /dev/shm and memfds. Pages of the first three are never written out, so that only the
// first store to each shows at all. An overlay writes out nothing of the file beneath it. A FUSE server
// reports the times that it likes.
constexpr std::array<std::pair<uint64_t, std::string_view>, 5> kUntraceable = {{
    {TMPFS_MAGIC, "tmpfs"},
    {RAMFS_MAGIC, "ramfs"},
    {HUGETLBFS_MAGIC, "hugetlbfs"},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
    {kFuseMagic, "FUSE"},
}};

// The file systems of this host's disks, and of memory.
constexpr std::array<uint64_t, 8> kLocal = {EXT4_SUPER_MAGIC,      kXfsMagic,  BTRFS_SUPER_MAGIC,
                                            F2FS_SUPER_MAGIC,      kZfsMagic,  TMPFS_MAGIC,
                                            OVERLAYFS_SUPER_MAGIC, RAMFS_MAGIC};

std::optional<uint64_t> TypeOf(int fd) {
  struct statfs system;
  if (fstatfs(fd, &system) != 0) return std::nullopt;
  return static_cast<uint64_t>(system.f_type);
}

}  // namespace

std::string_view UntraceableFileSystem(uint64_t type) {
  const auto* const found =
      std::ranges::find(kUntraceable, type, &std::pair<uint64_t, std::string_view>::first);
  return found == kUntraceable.end() ? "" : found->second;
}

std::string_view UntraceableFileSystemOf(int fd) {
  const std::optional<uint64_t> type = TypeOf(fd);
  return type.has_value() ? UntraceableFileSystem(*type) : "unknown";
}

bool MayHang(int fd) {
  const std::optional<uint64_t> type = TypeOf(fd);
  // A kind that is not known may be a network's: it counts as one that may hang.
  return !type.has_value() || std::ranges::find(kLocal, *type) == kLocal.end();
}

absl::Status WriteOutMappedPages(const RequestContext& context, const ObjectReader& file) {
  // Between two steps the caller's deadline counts.
  constexpr uint64_t kStepBytes = uint64_t{64} << 20;
  for (uint64_t offset = 0; offset < file.identity().bytes; offset += kStepBytes) {
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("open ", file.identity().uri, " for an import")));
    // Waits for pages that are being written out, writes out those that are dirty, and waits for these.
    // Afterwards each page is clean, so that the next store to it changes the file's times. Errors are left:
    // the call only serves to notice changes.
    (void)sync_file_range(file.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(kStepBytes),
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
