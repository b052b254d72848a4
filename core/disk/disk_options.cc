#include "core/disk/disk_options.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/posix/host_checks.h"

namespace tensorcast {

void DiskOptions::Validate(Findings& findings) const {
  for (const std::string& root : import_roots) {
    std::error_code error;
    if (!std::filesystem::path(root).is_absolute() || !std::filesystem::is_directory(root, error)) {
      findings.Add("daemon.import_roots",
                   absl::StrCat("\"", root,
                                "\" is not the absolute path of a folder on this host; write such a path"));
    }
  }
  if (!folder.empty()) CheckPrivatePlace("daemon.disk_dir", folder, "", findings);
}

}  // namespace tensorcast
