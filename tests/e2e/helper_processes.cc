#include "tests/e2e/helper_processes.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<pid_t> HelpersOf(pid_t daemon) {
  std::vector<pid_t> helpers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string status = ReadAll(entry.path() / "status");
    if (absl::StrContains(status, absl::StrCat("\nPPid:\t", daemon, "\n")) &&
        absl::StrContains(ReadAll(entry.path() / "cmdline"), "nccl-helper")) {
      helpers.push_back(pid);
    }
  }
  return helpers;
}

}  // namespace tensorcast
