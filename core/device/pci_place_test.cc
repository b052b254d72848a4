#include "core/device/pci_place.h"

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::pci_place_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A host's sysfs: two host bridges; below the first a switch with a GPU, and a second GPU beside the switch.
class PciPlaceTest : public ::testing::Test {
 protected:
  PciPlaceTest() {
    AddDevice(switch_ / "0000:3b:00.0", "0");
    AddDevice(first_bridge_ / "0000:3d:00.0", "0");
    AddDevice(second_bridge_ / "0000:86:00.0", "-1");
  }

  void AddDevice(const fs::path& way, const std::string& numa_node) {
    fs::create_directories(root_ / way);
    std::ofstream(root_ / way / "numa_node") << numa_node << "\n";
    fs::create_directories(root_ / "bus/pci/devices");
    fs::create_directory_symlink(root_ / way, root_ / "bus/pci/devices" / way.filename());
  }
  void AddAdapter(const std::string& adapters, const std::string& name, const fs::path& way) {
    const fs::path adapter = root_ / "class" / adapters / name;
    fs::create_directories(adapter);
    if (way.empty()) return;
    fs::create_directories(root_ / way);
    fs::create_directory_symlink(root_ / way, adapter / "device");
  }
  PciPlace Find(const std::string& bus_id) { return FindPciPlace(root_.string(), bus_id); }

  const fs::path first_bridge_ = "devices/pci0000:3a";
  const fs::path switch_ = first_bridge_ / "0000:3a:00.0";
  const fs::path second_bridge_ = "devices/pci0000:85";
  const testing::TempFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(PciPlaceTest, PciPlace_ReportsNumaNodeFromSysfs) {
  EXPECT_EQ(Find("0000:3b:00.0").numa_node, 0);
  EXPECT_EQ(Find("0000:86:00.0").numa_node, std::nullopt) << "-1 is the kernel's word for none";
}

TEST_F(PciPlaceTest, NearestAdapters_ShareTheLongestPath) {
  AddAdapter("net", "lo", {});
  AddAdapter("net", "eth0", switch_ / "0000:3c:00.0");
  AddAdapter("net", "eth1", switch_ / "0000:3c:00.1");
  AddAdapter("net", "eth2", first_bridge_ / "0000:3e:00.0");
  EXPECT_THAT(Find("0000:3b:00.0").nearest_nics, ElementsAre("eth0", "eth1"));
  EXPECT_THAT(Find("0000:3d:00.0").nearest_nics, ElementsAre("eth0", "eth1", "eth2"))
      << "all below its bridge";
  EXPECT_THAT(Find("0000:86:00.0").nearest_nics, IsEmpty()) << "none below its bridge";
}

TEST_F(PciPlaceTest, NearestNics_PreferRdmaDevicesOverInterfaces) {
  AddAdapter("net", "ib0", switch_ / "0000:3c:00.0");
  AddAdapter("infiniband", "mlx5_0", switch_ / "0000:3c:00.0");
  EXPECT_THAT(Find("0000:3b:00.0").nearest_nics, ElementsAre("mlx5_0"));
}

TEST_F(PciPlaceTest, PciPlace_IsEmptyForUnknownDevice) {
  for (const std::string bus_id : {"", "0000:ff:00.0"}) {
    EXPECT_EQ(Find(bus_id).numa_node, std::nullopt);
    EXPECT_THAT(Find(bus_id).nearest_nics, IsEmpty());
  }
  EXPECT_EQ(FindPciPlace("/nonexistent", "0000:3b:00.0").numa_node, std::nullopt);
}

}  // namespace
}  // namespace tensorcast::pci_place_test
