#include "core/disk/packed_source.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/source/object_source.h"

namespace tensorcast {

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSource(SourceInfo info, int fd, uint64_t image_offset,
                                                              uint64_t image_bytes,
                                                              std::shared_ptr<void> keep_alive,
                                                              FileReaderOptions options) {
  // For messages: where the file is now, as far as this process may know.
  std::error_code unknown;
  const std::string path =
      std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), unknown).string();
  // Metrics tell packed files from imported ones by this.
  options.kind = "packed";
  ObjectReaders file(1);
  TC_ASSIGN_OR_RETURN(file[0], FileReader::Borrow(absl::StrCat(info.name, " (", path, ")"), fd,
                                                  std::move(keep_alive), options));
  info.type = SourceType::kDisk;
  info.lane = kDiskLane;
  return MakeObjectSource(std::move(file), {{0, image_offset, 0, image_bytes}}, image_bytes, std::move(info));
}

}  // namespace tensorcast
