#include "tests/e2e/process_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"

namespace tensorcast {

absl::StatusOr<int> OverwriteSharedMemory(pid_t pid, const std::string& found, const std::string& written) {
  const UniqueFd memory(open(absl::StrCat("/proc/", pid, "/mem").c_str(), O_RDWR | O_CLOEXEC));
  if (!memory) return ErrnoStatus(errno, "opening the memory of", absl::StrCat("process ", pid));
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  int places = 0;
  for (std::string line; std::getline(maps, line);) {
    // Of the daemon alone: a client maps the pool without the right to write.
    if (line.find("/memfd:") == std::string::npos || line.find(" rw-s ") == std::string::npos) continue;
    uint64_t begin = 0;
    uint64_t end = 0;
    char dash;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    std::string mapped(end - begin, '\0');
    if (pread(memory.get(), mapped.data(), mapped.size(), static_cast<off_t>(begin)) !=
        static_cast<ssize_t>(mapped.size())) {
      continue;
    }
    for (size_t at = mapped.find(found); at != std::string::npos; at = mapped.find(found, at + 1)) {
      if (pwrite(memory.get(), written.data(), written.size(), static_cast<off_t>(begin + at)) !=
          static_cast<ssize_t>(written.size())) {
        return ErrnoStatus(errno, "writing the memory of", absl::StrCat("process ", pid));
      }
      ++places;
    }
  }
  return places;
}

uint64_t HostPoolMemory(const std::vector<pid_t>& processes) {
  // By inode, since several processes map one segment, and one process may have it twice.
  std::map<ino_t, uint64_t> files;
  for (const pid_t process : processes) {
    for (const std::string_view folder : {"fd", "map_files"}) {
      std::error_code error;
      for (const auto& entry :
           std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/", folder), error)) {
        const std::string name = std::filesystem::read_symlink(entry.path(), error).string();
        struct stat file{};
        if (!name.starts_with("/memfd:tensorcast-host-pool")) continue;
        // Blocks of 512 bytes, whatever the file system's own are (stat(2)).
        if (stat(entry.path().c_str(), &file) == 0) files[file.st_ino] = uint64_t{512} * file.st_blocks;
      }
    }
  }
  uint64_t bytes = 0;
  for (const auto& [inode, here] : files) bytes += here;
  return bytes;
}

}  // namespace tensorcast
