#include "core/device/numa.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/device/pci_place.h"

namespace tensorcast {
namespace {

// "0-3,8": first and last of each piece. What cannot be read is left out.
std::vector<std::pair<int, int>> Ranges(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
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

// With one node there is nothing to choose, so callers get no nodes and leave the policy as it is.
bool HasSeveralNodes(const std::string& sysfs) {
  const auto nodes = Ranges(absl::StrCat(sysfs, "/devices/system/node/online"));
  return nodes.size() > 1 || (nodes.size() == 1 && nodes[0].second > nodes[0].first);
}

}  // namespace

NumaNodes NumaNodesOf(std::span<const DeviceInfo> devices, const std::string& sysfs) {
  NumaNodes nodes;
  if (!HasSeveralNodes(sysfs)) return nodes;
  for (const DeviceInfo& device : devices) {
    const PciPlace place = FindPciPlace(sysfs, device.pci_bus_id);
    if (place.numa_node.has_value()) nodes[device.ordinal] = *place.numa_node;
  }
  return nodes;
}

std::vector<int> DistinctNodes(const NumaNodes& nodes) {
  std::set<int> distinct;
  for (const auto& [device, node] : nodes) distinct.insert(node);
  return {distinct.begin(), distinct.end()};
}

NearNumaNode::NearNumaNode(std::optional<int> node, const std::string& sysfs) {
  cpu_set_t allowed;
  // Only CPUs on which the thread may run anyway: the operator's choice (taskset, cpuset) stays.
  if (!node.has_value() || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const auto& [first, last] :
       Ranges(absl::StrCat(sysfs, "/devices/system/node/node", *node, "/cpulist"))) {
    for (int cpu = first; cpu <= std::min(last, CPU_SETSIZE - 1); ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &near);
    }
  }
  // Either no CPU of the node may be used, or the thread uses these alone already.
  if (CPU_COUNT(&near) == 0 || CPU_EQUAL(&near, &allowed)) return;
  if (sched_setaffinity(0, sizeof(near), &near) == 0) before_ = allowed;
}

NearNumaNode::~NearNumaNode() {
  if (before_.has_value()) sched_setaffinity(0, sizeof(*before_), &*before_);
}

}  // namespace tensorcast
