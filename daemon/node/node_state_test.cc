#include "daemon/node/node_state.h"
#include "base/testing/temp_folder.h"

#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tensorcast::daemon::node_state_test {
namespace {

class NodeStateTest : public ::testing::Test {
 protected:
  void SetUp() override {}

  // Not there yet.
  std::string FreshDirectory() const { return folder_.path() + "/state"; }

 private:
  const tensorcast::testing::TempFolder folder_;
};

TEST_F(NodeStateTest, Reopen_KeepsNodeIdAndRaisesIncarnation) {
  const std::string directory = FreshDirectory();
  auto first = NodeState::Open(directory);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string id = (*first)->node_id();
  const uint64_t incarnation = (*first)->incarnation();
  EXPECT_EQ(id.size(), 36);
  first->reset();

  auto second = NodeState::Open(directory);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->node_id(), id);
  EXPECT_GT((*second)->incarnation(), incarnation);
}

TEST_F(NodeStateTest, Incarnation_GrowsWhenClockIsSetBack) {
  const std::string directory = FreshDirectory();
  std::filesystem::create_directories(directory);
  const uint64_t far_future = 9'000'000'000'000'000'000u;
  std::ofstream(directory + "/incarnation") << far_future << "\n";
  auto state = NodeState::Open(directory);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->incarnation(), far_future + 1);
}

TEST_F(NodeStateTest, SecondDaemonInStateDirectory_IsRefused) {
  const std::string directory = FreshDirectory();
  auto first = NodeState::Open(directory);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = NodeState::Open(directory);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(directory), std::string::npos);
}

TEST_F(NodeStateTest, ConcurrentStartsInEmptyDirectory_GiveOneNodeId) {
  constexpr int kStarts = 4;
  for (int round = 0; round < 100; ++round) {
    const std::string directory = FreshDirectory() + std::to_string(round);
    std::filesystem::create_directories(directory);
    std::vector<absl::StatusOr<std::unique_ptr<NodeState>>> states(kStarts);
    std::latch begin(kStarts);
    std::vector<std::thread> starts;
    for (auto& state : states) {
      starts.emplace_back([&] {
        begin.arrive_and_wait();
        state = NodeState::Open(directory);
      });
    }
    for (std::thread& start : starts) start.join();
    std::string node_id;
    for (const auto& state : states) {
      if (!state.ok()) {
        EXPECT_EQ(state.status().code(), absl::StatusCode::kFailedPrecondition) << state.status();
        continue;
      }
      EXPECT_EQ(node_id, "") << "two hold it";
      node_id = (*state)->node_id();
    }
    std::string written;
    std::ifstream(directory + "/node_id") >> written;
    ASSERT_EQ(node_id, written) << "in round " << round;
  }
}

TEST_F(NodeStateTest, EmptyNodeIdFile_IsReplacedAtStart) {
  const std::string directory = FreshDirectory();
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/node_id").close();
  auto state = NodeState::Open(directory);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->node_id().size(), 36u);
}

TEST_F(NodeStateTest, StateDirectory_IsLockedByAnyPathUntilClosed) {
  const std::string directory = FreshDirectory();
  auto first = NodeState::Open(directory);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename() != "node_id") std::filesystem::remove(entry.path());
  }
  EXPECT_EQ(NodeState::Open(directory).status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string link = directory + "-link";
  std::filesystem::create_directory_symlink(directory, link);
  EXPECT_EQ(NodeState::Open(link).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(link);
  first->reset();
  EXPECT_TRUE(NodeState::Open(directory).ok());
}

TEST_F(NodeStateTest, ReserveFile_IsKeptAtExitAndFreedAtStart) {
  const std::string directory = FreshDirectory();
  auto state = NodeState::Open(directory);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE(std::filesystem::exists(directory + "/reserve"));
  (*state)->KeepRoom();
  EXPECT_GE(std::filesystem::file_size(directory + "/reserve"), 64u << 10);
  state->reset();
  state = NodeState::Open(directory);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE(std::filesystem::exists(directory + "/reserve"));
}

TEST_F(NodeStateTest, DamagedStateFile_IsDataLoss) {
  const std::string directory = FreshDirectory();
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/node_id") << "half a uu";
  EXPECT_EQ(NodeState::Open(directory).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(directory + "/node_id");
  for (const char* damaged : {"seven", "9223372036854775807", "18446744073709551615"}) {
    std::ofstream(directory + "/incarnation") << damaged;
    EXPECT_EQ(NodeState::Open(directory).status().code(), absl::StatusCode::kDataLoss) << damaged;
  }
}

TEST_F(NodeStateTest, ReadBootId_ReturnsSameIdEachTime) {
  auto first = ReadBootId();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *ReadBootId());
}

}  // namespace
}  // namespace tensorcast::daemon::node_state_test
