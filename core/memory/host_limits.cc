#include "core/memory/host_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/memory/huge_pages.h"

namespace tensorcast {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// nullopt also for the "max" of a control group without a limit.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t value;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  return value;
}

// "MemAvailable:   123 kB"
std::optional<uint64_t> ReadMemAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib;
    if (words.size() >= 2 && words[0] == "MemAvailable:" && absl::SimpleAtoi(words[1], &kib)) {
      return kib << 10;
    }
  }
  return std::nullopt;
}

// The limit of this process's control group, of either interface version, at its usual mount point. In a
// container the group's own files often appear at the mount's root instead of at the path that the kernel
// tells. Both are read, and the lower number counts.
uint64_t ReadGroupLimit() {
  uint64_t limit = kUnlimited;
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    // A line is "hierarchy:controllers:path"; version 2 has hierarchy 0 and no controllers.
    const bool unified = fields[0] == "0" && fields[1].empty();
    if (!unified && fields[1] != "memory") continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string leaf = unified ? "/memory.max" : "/memory.limit_in_bytes";
    for (const std::string& group : {fields[2], std::string()}) {
      limit = std::min(limit, ReadNumber(absl::StrCat(root, group, leaf)).value_or(kUnlimited));
    }
  }
  return limit;
}

absl::Status TooLarge(uint64_t bytes, std::string_view reason,
                      std::string_view remedy = "lower daemon.host_pool") {
  return absl::ResourceExhaustedError(absl::StrCat(
      "make a host pool of ", bytes, " bytes: the pool does not fit, because ", reason, "; ", remedy));
}

}  // namespace

HostLimits ReadHostLimits() {
  HostLimits limits;
  limits.physical_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  limits.physical_bytes = std::min(limits.physical_bytes, ReadGroupLimit());
  // The kernel's estimate knows nothing of the control group.
  limits.available_bytes = std::min(limits.physical_bytes, ReadMemAvailable().value_or(kUnlimited));
  rlimit file_size;
  limits.file_bytes = getrlimit(RLIMIT_FSIZE, &file_size) == 0 ? file_size.rlim_cur : kUnlimited;
  return limits;
}

absl::Status CheckFits(uint64_t bytes, uint64_t segment_bytes, bool prefaulted, const HostLimits& limits) {
  if (bytes > limits.physical_bytes) {
    return TooLarge(bytes, absl::StrCat("this host (or its control group) has ", limits.physical_bytes,
                                        " bytes of memory"));
  }
  // Each segment is a file in memory, to which the limit applies.
  if (std::min(bytes, segment_bytes) > limits.file_bytes) {
    return TooLarge(
        bytes,
        absl::StrCat("the file size limit (ulimit -f) is ", limits.file_bytes,
                     " bytes, but a segment of the pool has ", std::min(bytes, segment_bytes), " bytes"),
        "raise the file size limit, or lower daemon.host_pool below the limit");
  }
  if (prefaulted && bytes > limits.available_bytes) {
    return TooLarge(bytes, absl::StrCat("only ", limits.available_bytes, " of ", limits.physical_bytes,
                                        " bytes of memory are available at the moment"));
  }
  return absl::OkStatus();
}

uint64_t FreeHugePageBytes() {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const uint64_t free = ReadNumber(folder + "free_hugepages").value_or(0);
  // The kernel has promised these to mappings that have not touched them yet.
  const uint64_t promised = ReadNumber(folder + "resv_hugepages").value_or(0);
  return free > promised ? (free - promised) * kHugePageBytes : 0;
}

}  // namespace tensorcast
