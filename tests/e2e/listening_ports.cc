#include "tests/e2e/listening_ports.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

constexpr char kListening[] = "0A";  // a socket's state in the kernel's tables

}  // namespace

// The kernel's tables name a socket by its inode, and so do the links of a process's descriptors.
std::set<int> ListeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code closed_meanwhile;
    const std::string target = std::filesystem::read_symlink(entry.path(), closed_meanwhile).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  for (const char* family : {"tcp", "tcp6"}) {
    std::ifstream table(absl::StrCat("/proc/", pid, "/net/", family));
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, skipped, inode;
      fields >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      if (state != kListening || !inodes.contains(inode)) continue;
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

}  // namespace tensorcast
