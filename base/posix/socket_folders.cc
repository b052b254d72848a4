#include "base/posix/socket_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"

namespace tensorcast {
namespace {

// Empty where the variable names no folder of this user.
std::string RuntimeFolder() {
  const char* const folder = std::getenv("XDG_RUNTIME_DIR");
  if (folder == nullptr || folder[0] != '/') return "";
  struct stat found{};
  const bool own = stat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid();
  return own ? absl::StrCat(folder, "/tensorcast") : "";
}

}  // namespace

std::string DefaultSocketFolder() { return SocketFolders().front(); }

std::string SocketFolderOf(std::string_view state_folder) {
  return state_folder == DefaultStateFolder() ? DefaultSocketFolder() : std::string(state_folder);
}

std::vector<std::string> SocketFolders() {
  std::vector<std::string> folders;
  if (geteuid() != 0) {
    if (std::string runtime = RuntimeFolder(); !runtime.empty()) folders.push_back(std::move(runtime));
    folders.push_back(DefaultStateFolder());
  }
  folders.emplace_back(kSystemSocketFolder);
  return folders;
}

}  // namespace tensorcast
