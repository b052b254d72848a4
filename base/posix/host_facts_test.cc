#include "base/posix/host_facts.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::host_facts_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class HostFactsTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = absl::StrCat(folder_.path(), "/", path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void AddLink(const std::string& name, const std::string& state, const std::string& speed,
               const std::string& kind) const {
    Write(absl::StrCat("sys/class/net/", name, "/operstate"), state + "\n");
    Write(absl::StrCat("sys/class/net/", name, "/speed"), speed + "\n");
    if (!kind.empty()) Write(absl::StrCat("sys/class/net/", name, "/", kind, "/is"), "so");
  }
  HostFacts Read() const { return ReadHostFacts(folder_.path() + "/proc", folder_.path() + "/sys"); }

  const testing::TempFolder folder_;
};

TEST_F(HostFactsTest, Process_LimitsAndCpusAreRead) {
  for (const char* fd : {"0", "1", "2"}) Write(absl::StrCat("proc/self/fd/", fd), "");
  Write("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
        "Max open files            1024                 524288               files     \n");
  Write("proc/self/status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3,8\n");
  const HostFacts facts = Read();
  EXPECT_EQ(facts.descriptors_open, 3u);
  EXPECT_EQ(facts.descriptors_max, 1024u);
  EXPECT_EQ(facts.locked_memory_max, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(facts.cpus, 5u);
}

TEST_F(HostFactsTest, Links_ThatAreUpAndOfHardwareAreListed) {
  AddLink("eth1", "up", "25000", "device");
  AddLink("bond0", "up", "200000", "bonding");
  AddLink("eth2", "down", "25000", "device");
  AddLink("eth3", "up", "100000", "device");
  Write("sys/class/net/eth3/bonding_slave/state", "active");
  AddLink("virtio", "up", "-1", "device");
  AddLink("veth7", "up", "10000", "");
  const HostFacts facts = Read();
  ASSERT_THAT(facts.links, SizeIs(2));
  EXPECT_EQ(facts.links[0].interface, "bond0");
  EXPECT_EQ(facts.links[0].mbit, 200'000u);
  EXPECT_EQ(facts.links[1].interface, "eth1");
}

TEST_F(HostFactsTest, NothingThere_IsZeroAndEmpty) {
  const HostFacts facts = Read();
  EXPECT_EQ(facts.descriptors_open, 0u);
  EXPECT_EQ(facts.descriptors_max, 0u);
  EXPECT_EQ(facts.cpus, 0u);
  EXPECT_THAT(facts.links, IsEmpty());
}

TEST_F(HostFactsTest, ThisProcess_HasItsOwnLimits) {
  const HostFacts facts = ReadHostFacts();
  EXPECT_EQ(facts.descriptors_max, static_cast<uint64_t>(DescriptorLimit()));
  EXPECT_GE(facts.descriptors_open, 3u);
  EXPECT_GE(facts.cpus, 1u);
}

}  // namespace
}  // namespace tensorcast::host_facts_test
