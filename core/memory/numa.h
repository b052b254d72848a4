// Memory and threads near a NUMA node of the host (mbind(2), sched_setaffinity(2); sysfs says which CPUs a
// node has). All of it is a wish: where the host has one node, or this process may not ask, everything works
// as without. Thread-safe, but for objects, which belong to their thread.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast {

// The node of each GPU, by ordinal; empty where it makes no difference.
using NumaNodes = std::map<int, int>;

// Whether the host has more than one node.
bool HasSeveralNumaNodes(std::string_view sysfs);

// Pages of this range are to be of that node as long as it has free ones; those that are elsewhere move. The
// range is whole pages. UNAVAILABLE where the kernel does not do it.
absl::Status PreferNumaNode(int node, std::span<std::byte> range);

// While it lives, its thread and the threads that it starts run on the CPUs of a node, of those on which it
// was to run. Where there are none nothing changes.
class NearNumaNode {
 public:
  explicit NearNumaNode(std::optional<int> node, const std::string& sysfs = "/sys");
  ~NearNumaNode();
  NearNumaNode(const NearNumaNode&) = delete;
  NearNumaNode& operator=(const NearNumaNode&) = delete;

 private:
  std::optional<cpu_set_t> before_;  // that it left
};

}  // namespace tensorcast
