// Threads and memory near the NUMA node of a device (sched_setaffinity(2); sysfs says which CPUs a node has).
// Best effort: where the host has one node, or nothing is known, everything works as without.
#pragma once

#include <sched.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/device_runtime.h"

namespace tensorcast {

// The node of each device, by ordinal; empty where it makes no difference.
using NumaNodes = std::map<int, int>;

// As `sysfs` says; empty on a host that has one node. Thread-safe.
NumaNodes NumaNodesOf(std::span<const DeviceInfo> devices, const std::string& sysfs = "/sys");

// Each node once, in ascending order.
std::vector<int> DistinctNodes(const NumaNodes& nodes);

// While it lives, its thread runs on the CPUs of a node, of those on which it was to run. Where there are
// none nothing changes. Threads that are started meanwhile inherit it for good: only for threads that start
// none that outlive it. One thread's.
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
