#include "core/device/numa.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::numa_test {
namespace {

cpu_set_t OwnCpus() {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

class Numa : public ::testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = sysfs() + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& sysfs() const { return folder_.path(); }

  const testing::TempFolder folder_;
};

TEST_F(Numa, NumaNodesOf_ListsDevicesWithNodeOnMultiNodeHost) {
  Write("bus/pci/devices/0000:3b:00.0/numa_node", "1");
  Write("bus/pci/devices/0000:86:00.0/numa_node", "-1");
  const std::vector<DeviceInfo> devices = {{.ordinal = 0, .pci_bus_id = "0000:86:00.0"},
                                           {.ordinal = 1, .pci_bus_id = "0000:3b:00.0"},
                                           {.ordinal = 2}};
  EXPECT_EQ(NumaNodesOf(devices, sysfs()), NumaNodes()) << "it does not say how many nodes there are";
  for (const auto& [online, several] : {std::pair{"0", false}, {"0-1", true}, {"0,2", true}, {"", false}}) {
    Write("devices/system/node/online", online);
    EXPECT_EQ(NumaNodesOf(devices, sysfs()), several ? NumaNodes({{1, 1}}) : NumaNodes()) << online;
  }
}

TEST_F(Numa, DistinctNodes_ListsEachNodeOnce) {
  EXPECT_EQ(DistinctNodes({{0, 1}, {1, 1}, {2, 0}, {5, 3}}), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(DistinctNodes({}), std::vector<int>());
}

TEST_F(Numa, NearNumaNode_LimitsThreadToNodeCpusUntilDestroyed) {
  const cpu_set_t all = OwnCpus();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU has no choice";
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &all)) --last;
  Write("devices/system/node/node1/cpulist", absl::StrCat(last, "-", last + 5));
  {
    const NearNumaNode near(1, sysfs());
    const cpu_set_t own = OwnCpus();
    EXPECT_EQ(CPU_COUNT(&own), 1);
    EXPECT_TRUE(CPU_ISSET(last, &own));
  }
  const cpu_set_t after = OwnCpus();
  EXPECT_TRUE(CPU_EQUAL(&after, &all));
}

TEST_F(Numa, NearNumaNode_KeepsAllCpusForUnknownNode) {
  const cpu_set_t all = OwnCpus();
  Write("devices/system/node/node2/cpulist", "nonsense");
  for (const std::optional<int> node : {std::optional<int>(), std::optional(1), std::optional(2)}) {
    const NearNumaNode near(node, sysfs());
    const cpu_set_t own = OwnCpus();
    EXPECT_TRUE(CPU_EQUAL(&own, &all));
  }
}

}  // namespace
}  // namespace tensorcast::numa_test
