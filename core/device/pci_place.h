// Where a device sits in its host: the NUMA node that it hangs on, and the network adapters nearest to it, as
// the kernel's sysfs tells.
//
// Stateless; thread-safe. What sysfs does not say (a virtual machine, a container) is left out, never
// guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast {

struct PciPlace {
  std::optional<int> numa_node;
  // Names, sorted: those with which the device shares most of its way from the root of the PCI tree, at least
  // the host bridge. RDMA devices where there are any, else network interfaces.
  std::vector<std::string> nearest_nics;
};

// `sysfs`: "/sys", or a folder laid out like it. `bus_id`: "0000:3b:00.0"; nothing is found for an empty one.
PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id);

}  // namespace tensorcast
