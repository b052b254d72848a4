// The place of a device in its host: its NUMA node, and the network adapters nearest to it. FindPciPlace
// reads both from the kernel's sysfs.
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
  // Sorted names of the nearest RDMA devices. If the device's host bridge has no RDMA device, these are the
  // names of the nearest network interfaces. The nearest adapters share the longest prefix of the PCI path
  // with the device.
  std::vector<std::string> nearest_nics;
};

// `sysfs` is "/sys" or a folder with the same layout. `bus_id` has the form "0000:3b:00.0"; an empty `bus_id`
// gives an empty result.
PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id);

}  // namespace tensorcast
