#include "core/disk/mapped_pages.h"

#include <fcntl.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {

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
