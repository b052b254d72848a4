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
  // Sorted names of the adapters that share the longest path from the root of the PCI tree with the device,
  // at least the host bridge. RDMA devices if there are any, else network interfaces.
  std::vector<std::string> nearest_nics;
};

// `sysfs`: "/sys", or a folder laid out like it. `bus_id`: "0000:3b:00.0"; nothing is found for an empty one.
PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id);

}  // namespace tensorcast
