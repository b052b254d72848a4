#include "base/posix/host_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;

// Empty where there is none, as of what a process may not read.
fs::directory_iterator EntriesOf(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, fs::directory_options::skip_permission_denied, error);
  return error ? fs::directory_iterator() : entries;
}

uint64_t CountEntries(const std::string& folder) {
  uint64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry = EntriesOf(folder); entry != fs::directory_iterator() && !error;
       entry.increment(error)) {
    ++count;
  }
  return count;
}

// "Max open files            1024                 524288               files": the first number, which holds.
uint64_t LimitIn(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, name)) continue;
    const std::vector<std::string_view> words = absl::StrSplit(rest, ' ', absl::SkipEmpty());
    uint64_t limit = 0;
    if (!words.empty() && words[0] == "unlimited") return std::numeric_limits<uint64_t>::max();
    return !words.empty() && absl::SimpleAtoi(words[0], &limit) ? limit : 0;
  }
  return 0;
}

// "Cpus_allowed_list:	0-3,8": 5.
uint32_t CountCpus(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::string_view list = line;
    if (!absl::ConsumePrefix(&list, "Cpus_allowed_list:")) continue;
    uint32_t count = 0;
    for (const std::string_view range : absl::StrSplit(absl::StripAsciiWhitespace(list), ',')) {
      const std::vector<std::string_view> ends = absl::StrSplit(range, '-');
      uint32_t first = 0, last = 0;
      if (absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last) && first <= last) {
        count += last - first + 1;
      }
    }
    return count;
  }
  return 0;
}

std::vector<LinkFacts> LinksBelow(const std::string& folder) {
  std::vector<LinkFacts> links;
  std::error_code error;
  for (fs::directory_iterator entry = EntriesOf(folder); entry != fs::directory_iterator() && !error;
       entry.increment(error)) {
    const fs::path& interface = entry->path();
    std::error_code ignored;
    // Only hardware has a "device", and only a bond a "bonding". Bridges, veth pairs and tunnels have
    // neither.
    if (!fs::exists(interface / "device", ignored) && !fs::exists(interface / "bonding", ignored)) continue;
    if (fs::exists(interface / "bonding_slave", ignored)) continue;  // its bond says the rate
    std::string state;
    std::ifstream(interface / "operstate") >> state;
    int64_t mbit = -1;  // as the kernel says where a driver does not know
    std::ifstream(interface / "speed") >> mbit;
    if (state == "up" && mbit > 0) {
      links.push_back({.interface = interface.filename().string(), .mbit = static_cast<uint64_t>(mbit)});
    }
  }
  std::ranges::sort(links, {}, &LinkFacts::interface);
  return links;
}

}  // namespace

HostFacts ReadHostFacts(const std::string& proc, const std::string& sysfs) {
  const std::string own = absl::StrCat(proc, "/self");
  return {.descriptors_open = CountEntries(absl::StrCat(own, "/fd")),
          .descriptors_max = LimitIn(absl::StrCat(own, "/limits"), "Max open files"),
          .locked_memory_max = LimitIn(absl::StrCat(own, "/limits"), "Max locked memory"),
          .cpus = CountCpus(absl::StrCat(own, "/status")),
          .links = LinksBelow(absl::StrCat(sysfs, "/class/net"))};
}

}  // namespace tensorcast
