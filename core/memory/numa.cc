#include "core/memory/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr size_t kMostNodes = 1024;  // as kernels are built at most
constexpr size_t kWordBits = sizeof(unsigned long) * 8;

// "0-3,8": first and last of each piece. What cannot be read is left out.
std::vector<std::pair<int, int>> Ranges(const std::string& path) {
  std::string text;
  std::getline(std::ifstream(path), text);
  std::vector<std::pair<int, int>> ranges;
  for (const std::string_view piece : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string_view, std::string_view> ends = absl::StrSplit(piece, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || first < 0) continue;
    int last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) continue;
    ranges.emplace_back(first, last);
  }
  return ranges;
}

}  // namespace

bool HasSeveralNumaNodes(std::string_view sysfs) {
  const auto nodes = Ranges(absl::StrCat(sysfs, "/devices/system/node/online"));
  return nodes.size() > 1 || (nodes.size() == 1 && nodes[0].second > nodes[0].first);
}

absl::Status PreferNumaNode(int node, std::span<std::byte> range) {
  std::array<unsigned long, kMostNodes / kWordBits> nodes = {};
  if (node < 0 || static_cast<size_t>(node) >= kMostNodes) {
    return absl::InvalidArgumentError(absl::StrCat("there is no NUMA node ", node));
  }
  nodes[node / kWordBits] = 1UL << (node % kWordBits);
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  if (syscall(SYS_mbind, begin, range.size(), MPOL_PREFERRED, nodes.data(), kMostNodes, MPOL_MF_MOVE) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      ErrnoStatus(errno, "ask for pages of", absl::StrCat("NUMA node ", node)).message());
}

NearNumaNode::NearNumaNode(std::optional<int> node, const std::string& sysfs) {
  cpu_set_t allowed;
  if (!node.has_value() || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const auto& [first, last] :
       Ranges(absl::StrCat(sysfs, "/devices/system/node/node", *node, "/cpulist"))) {
    for (int cpu = first; cpu <= std::min(last, CPU_SETSIZE - 1); ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &near);
    }
  }
  if (CPU_COUNT(&near) == 0 || CPU_EQUAL(&near, &allowed)) return;
  if (sched_setaffinity(0, sizeof(near), &near) == 0) before_ = allowed;
}

NearNumaNode::~NearNumaNode() {
  if (before_.has_value()) sched_setaffinity(0, sizeof(*before_), &*before_);
}

}  // namespace tensorcast
