#include "core/disk/mapped_pages.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr uint64_t kFuseMagic = 0x65735546;  // not in every version of the kernel's headers

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

}  // namespace

std::string_view UntraceableFileSystem(uint64_t type) {
  const auto* const found =
      std::ranges::find(kUntraceable, type, &std::pair<uint64_t, std::string_view>::first);
  return found == kUntraceable.end() ? "" : found->second;
}

std::string_view UntraceableFileSystem(const OpenedFile& file) {
  struct statfs system;
  if (fstatfs(file.fd.get(), &system) != 0) return "unknown";
  return UntraceableFileSystem(static_cast<uint64_t>(system.f_type));
}

absl::Status WriteOutMappedPages(const RequestContext& context, const OpenedFile& file) {
  constexpr uint64_t kStepBytes = uint64_t{64} << 20;
  for (uint64_t offset = 0; offset < file.identity.bytes; offset += kStepBytes) {
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("opening ", file.identity.path, " for an import")));
    (void)sync_file_range(file.fd.get(), static_cast<off_t>(offset), static_cast<off_t>(kStepBytes),
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
