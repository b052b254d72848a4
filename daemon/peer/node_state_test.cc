#include "daemon/peer/node_state.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

std::string FreshDirectory() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string directory = testing::TempDir() + "/node_state_" + test->name();
  std::filesystem::remove_all(directory);
  return directory;
}

TEST(NodeState, TheNodeIdStaysAndTheIncarnationGrows) {
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

TEST(NodeState, TheIncarnationGrowsEvenWhenTheClockWasSetBack) {
  const std::string directory = FreshDirectory();
  std::filesystem::create_directories(directory);
  const uint64_t far_future = 9'000'000'000'000'000'000u;
  std::ofstream(directory + "/incarnation") << far_future << "\n";
  auto state = NodeState::Open(directory);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->incarnation(), far_future + 1);
}

TEST(NodeState, ASecondDaemonOnTheSameDirectoryFailsAndSaysWhatToDo) {
  const std::string directory = FreshDirectory();
  auto first = NodeState::Open(directory);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = NodeState::Open(directory);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(directory), std::string::npos);
}

TEST(NodeState, ADamagedFileIsReportedNotReplaced) {
  const std::string directory = FreshDirectory();
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/node_id") << "half a uu";
  EXPECT_EQ(NodeState::Open(directory).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(directory + "/node_id");
  std::ofstream(directory + "/incarnation") << "seven";
  EXPECT_EQ(NodeState::Open(directory).status().code(), absl::StatusCode::kDataLoss);
}

TEST(NodeState, TheBootIdIsTheSameEachTime) {
  auto first = ReadBootId();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *ReadBootId());
}

}  // namespace
}  // namespace tensorcast::daemon
