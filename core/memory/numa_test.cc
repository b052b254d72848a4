#include "core/memory/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"

namespace tensorcast {
namespace {

cpu_set_t OwnCpus() {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

class Numa : public ::testing::Test {
 protected:
  // A host with these nodes, as sysfs would tell.
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = sysfs() + "/devices/system/node/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& sysfs() const { return folder_.path(); }

  const testing::TempFolder folder_;
};

TEST_F(Numa, KnowsWhetherThereAreSeveralNodes) {
  EXPECT_FALSE(HasSeveralNumaNodes(sysfs())) << "which says nothing";
  for (const auto& [online, several] : {std::pair{"0", false}, {"0-1", true}, {"0,2", true}, {"", false}}) {
    Write("online", online);
    EXPECT_EQ(HasSeveralNumaNodes(sysfs()), several) << online;
  }
}

TEST_F(Numa, AThreadAndThoseThatItStartsRunOnTheNodesCpusForAsLongAsAsked) {
  const cpu_set_t all = OwnCpus();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU has no choice";
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &all)) --last;
  Write("node1/cpulist", absl::StrCat(last, "-", last + 5));
  {
    const NearNumaNode near(1, sysfs());
    const cpu_set_t own = OwnCpus();
    EXPECT_EQ(CPU_COUNT(&own), 1);
    EXPECT_TRUE(CPU_ISSET(last, &own));
    cpu_set_t inherited;
    std::thread([&] { inherited = OwnCpus(); }).join();
    EXPECT_TRUE(CPU_EQUAL(&inherited, &own));
  }
  const cpu_set_t after = OwnCpus();
  EXPECT_TRUE(CPU_EQUAL(&after, &all));
}

TEST_F(Numa, ANodeThatIsNotKnownChangesNothing) {
  const cpu_set_t all = OwnCpus();
  Write("node2/cpulist", "nonsense");
  for (const std::optional<int> node : {std::optional<int>(), std::optional(1), std::optional(2)}) {
    const NearNumaNode near(node, sysfs());
    const cpu_set_t own = OwnCpus();
    EXPECT_TRUE(CPU_EQUAL(&own, &all));
  }
}

TEST_F(Numa, PagesAreOfTheNodeThatIsPreferred) {
  const size_t bytes = size_t{2} << 20;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const absl::Status asked = PreferNumaNode(0, {static_cast<std::byte*>(memory), bytes});
  if (asked.ok()) {
    int mode = -1;
    unsigned long nodes[16] = {};
    ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, memory, MPOL_F_ADDR), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(nodes[0], 1u);
  } else {
    EXPECT_TRUE(absl::IsUnavailable(asked)) << asked;  // a container that forbids it
  }
  EXPECT_FALSE(PreferNumaNode(1000, {static_cast<std::byte*>(memory), bytes}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(PreferNumaNode(-1, {})));
  munmap(memory, bytes);
}

}  // namespace
}  // namespace tensorcast
