#include "cli/commands/programs.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tensorcast::cli {
namespace {

bool IsProgram(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  // First beside this program: the two of one build or one package have one version.
  std::error_code unreadable;
  // The kernel's link and not argv[0], which the caller of exec chooses.
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", unreadable).parent_path();
  if (!own.empty() && IsProgram(own / name)) return (own / name).string();
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    // A relative one depends on the working folder, where other users may have put a file of that name.
    if (!folder.starts_with('/')) continue;
    if (const std::filesystem::path file = std::filesystem::path(folder) / name; IsProgram(file)) {
      return file.string();
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "find program ", name, ": ", own.empty() ? "the folder of this program" : own.string(),
      " and PATH do not have this program (relative folders in PATH are ignored); install the TensorCast "
      "package again"));
}

absl::Status BecomeProgram(const std::string& name, char* const* argv) {
  TC_ASSIGN_OR_RETURN(const std::string path, FindProgram(name));
  // In place of this process, not as its child: terminal, signals and exit code need no passing on.
  execv(path.c_str(), argv);
  return ErrnoStatus(errno, "start", path);
}

}  // namespace tensorcast::cli
