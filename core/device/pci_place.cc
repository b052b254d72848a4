#include "core/device/pci_place.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;

// Which nodes of the tree of all devices lead to this one: "devices", "pci0000:3a", "0000:3a:00.0", ...
std::vector<std::string> WayTo(const fs::path& device) {
  std::error_code error;
  const fs::path real = fs::canonical(device, error);
  if (error) return {};
  return {real.begin(), real.end()};
}

// How much of both ways is the same; 0 where they part above the host bridge.
size_t Shared(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  const auto parting = std::ranges::mismatch(one, other).in1;
  const bool host_bridge = std::any_of(one.begin(), parting,
                                       [](const std::string& node) { return absl::StartsWith(node, "pci"); });
  return host_bridge ? static_cast<size_t>(parting - one.begin()) : 0;
}

// The adapters of this class that share the longest way with the device. Adapters without a PCI device
// (loopback, bridges) have no way.
std::vector<std::string> Nearest(const fs::path& adapters, const std::vector<std::string>& way) {
  std::vector<std::string> nearest;
  size_t max = 0;
  std::error_code error;
  fs::directory_iterator adapter(adapters, error);
  // Not by a range: the operator ++ throws where the folder cannot be read to its end.
  for (const fs::directory_iterator end; !error && adapter != end; adapter.increment(error)) {
    const size_t shared = Shared(way, WayTo(adapter->path() / "device"));
    if (shared == 0 || shared < max) continue;
    // Adapters that are equally near all count.
    if (shared > max) nearest.clear();
    max = shared;
    nearest.push_back(adapter->path().filename());
  }
  std::ranges::sort(nearest);
  return nearest;
}

}  // namespace

PciPlace FindPciPlace(std::string_view sysfs, std::string_view bus_id) {
  PciPlace place;
  if (bus_id.empty()) return place;
  const fs::path root(sysfs);
  const fs::path device = root / "bus/pci/devices" / bus_id;
  int numa_node = -1;  // what the kernel writes where there is none
  if (std::ifstream(device / "numa_node") >> numa_node && numa_node >= 0) place.numa_node = numa_node;
  const std::vector<std::string> way = WayTo(device);
  // RDMA adapters first; where there is none of them near, network interfaces.
  place.nearest_nics = Nearest(root / "class/infiniband", way);
  if (place.nearest_nics.empty()) place.nearest_nics = Nearest(root / "class/net", way);
  return place;
}

}  // namespace tensorcast
