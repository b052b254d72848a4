// The place of a device in its host: its NUMA node, and the network adapters nearest to it. Read from the
// kernel's sysfs.
//
// Stateless; thread-safe. Facts that sysfs does not have (in a virtual machine, a container) are left out,
// never guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast {

struct PciPlace {
  std::optional<int> numa_node;
  // Sorted names of the nearest adapters: from the root of the PCI tree, their paths share the longest part
  // with the device's path, and at least a host bridge. RDMA devices if there are any, else network
  // interfaces.
  std::vector<std::string> nearest_nics;
};

// `sysfs` is "/sys" or a folder with the same layout. `bus_id` is such as "0000:3b:00.0"; an empty one gives
// an empty result.
PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id);

}  // namespace tensorcast
