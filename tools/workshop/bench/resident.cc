#include "tools/workshop/bench/resident.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tensorcast::bench {
namespace {

// core/memory and core/device name their memfds so.
constexpr std::string_view kPoolName = "/memfd:tensorcast-";

// A mapping's first line is "<begin>-<end> <permissions> ..."; those of its fields are "<Name>: ...".
bool IsMappingLine(std::string_view line) {
  const std::string_view first = line.substr(0, line.find(' '));
  return !first.empty() && first.back() != ':';
}

}  // namespace

ResidentMemory ParseSmaps(std::string_view smaps) {
  ResidentMemory resident;
  bool pool = false;
  for (std::string_view line : absl::StrSplit(smaps, '\n', absl::SkipEmpty())) {
    if (IsMappingLine(line)) {
      pool = absl::StrContains(line, kPoolName);
    } else if (absl::ConsumePrefix(&line, "Rss:")) {
      uint64_t kib = 0;
      (void)absl::SimpleAtoi(absl::StripSuffix(absl::StripAsciiWhitespace(line), " kB"), &kib);
      (pool ? resident.pools_bytes : resident.beyond_bytes) += kib << 10;
    }
  }
  return resident;
}

absl::StatusOr<ResidentMemory> ReadResidentMemory(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/smaps");
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  // A process that has ended, but was not reaped, has an empty one.
  if (!file || text.str().empty()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return ParseSmaps(text.str());
}

}  // namespace tensorcast::bench
