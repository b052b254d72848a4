// The place of a device in its host: its NUMA node, and the network adapters nearest to it. Read from the
// kernel's sysfs.
//
// Stateless; thread-safe. Facts that sysfs does not have (such as in a virtual machine or a container) are
// left out, never guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast {

struct PciPlace {
  std::optional<int> numa_node;
  // Sorted names of the nearest adapters. From the root of the PCI tree on, their paths share the longest
  // part with the device's path. The shared part has at least a host bridge. The adapters are RDMA devices if
  // there are any, else network interfaces.
  std::vector<std::string> nearest_nics;
};

// `sysfs` is "/sys" or a folder with the same layout. `bus_id` has the form "0000:3b:00.0"; an empty `bus_id`
// gives an empty result.
PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id);

}  // namespace tensorcast
