// Places threads and memory near the NUMA node of a device (sched_setaffinity(2); sysfs lists the CPUs of a
// node). Best effort: it changes nothing if the host has one node, or if the nodes are unknown.
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

// While it lives, its thread runs only on those of its allowed CPUs that belong to the node; if there are
// none, nothing changes. Threads that are started meanwhile inherit this for good, so the thread must not
// start threads that outlive this object. Used by one thread.
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
