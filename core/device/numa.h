// Finds the NUMA node of a device, and places threads near it (sched_setaffinity(2); sysfs lists the CPUs of
// a node). Best effort: nothing changes if the host has one node, or if the nodes are unknown.
#pragma once

#include <sched.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/device_runtime.h"

namespace tensorcast {

// The NUMA node of each device, by ordinal. Empty on a host with one NUMA node.
using NumaNodes = std::map<int, int>;

// Reads the nodes from `sysfs`; devices without a known node are left out. Thread-safe.
NumaNodes NumaNodesOf(std::span<const DeviceInfo> devices, const std::string& sysfs = "/sys");

// Each node once, in ascending order.
std::vector<int> DistinctNodes(const NumaNodes& nodes);

// Restricts the calling thread to the allowed CPUs of the node, from construction to destruction on the same
// thread. If no allowed CPU belongs to the node, nothing changes. Threads that the calling thread starts
// meanwhile inherit the restriction permanently, so these threads must not outlive this object.
class NearNumaNode {
 public:
  explicit NearNumaNode(std::optional<int> node, const std::string& sysfs = "/sys");
  ~NearNumaNode();
  NearNumaNode(const NearNumaNode&) = delete;
  NearNumaNode& operator=(const NearNumaNode&) = delete;

 private:
  std::optional<cpu_set_t> before_;  // the CPUs to restore; nullopt: nothing changed
};

}  // namespace tensorcast
