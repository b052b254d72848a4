#include "tests/e2e/helper_processes.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Those that have this on their command line, and this in their status.
std::vector<pid_t> Find(std::string_view argument, std::string_view status) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    if (absl::StrContains(ReadAll(entry.path() / "status"), status) &&
        absl::StrContains(ReadAll(entry.path() / "cmdline"), argument)) {
      found.push_back(pid);
    }
  }
  return found;
}

}  // namespace

std::vector<pid_t> HelpersOf(pid_t daemon) {
  return Find("nccl-helper", absl::StrCat("\nPPid:\t", daemon, "\n"));
}

std::vector<pid_t> KeepersOf(const std::string& state_dir) {
  return Find(absl::StrCat("--socket=", state_dir, "/keeper.sock"), "");
}

}  // namespace tensorcast
