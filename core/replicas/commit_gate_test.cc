#include "core/replicas/commit_gate.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tensorcast {
namespace {

class CommitGateTest : public ::testing::Test {
 protected:
  // Leases are counted, not read: core/engine/live_advance_test.cc has real ones.
  static std::shared_ptr<LiveLease> Holder() { return std::make_shared<LiveLease>(nullptr); }
  void Stage() {
    gate_.Staged(nullptr, [this] { ++wakes_; });
  }

  int staged_ = 0;
  int wakes_ = 0;
  CommitGate gate_{[this] { ++staged_; }};
};

TEST_F(CommitGateTest, StagedVersion_IsToldOnceAndEntriesWakeTheIngest) {
  const auto early = Holder();
  const auto late = Holder();
  gate_.Enter(early);
  EXPECT_EQ(wakes_, 0) << "nothing is staged";
  Stage();
  EXPECT_EQ(staged_, 1);
  gate_.Enter(late);
  EXPECT_EQ(wakes_, 1);
}

TEST_F(CommitGateTest, Close_CountsHoldersThatHaveEntered) {
  Stage();
  EXPECT_EQ(gate_.Close(), 0u);
  gate_.Reopen(absl::UnavailableError("no holder"));
  const auto first = Holder();
  const auto second = Holder();
  gate_.Enter(first);
  gate_.Enter(first);
  gate_.Enter(second);
  EXPECT_EQ(gate_.Close(), 2u) << "a holder counts once";
}

TEST_F(CommitGateTest, HolderThatLeavesOpenGate_IsOut) {
  const auto holder = Holder();
  gate_.Enter(holder);
  EXPECT_TRUE(gate_.HasEntered(holder.get()));
  EXPECT_TRUE(gate_.Leave(holder.get()));
  EXPECT_FALSE(gate_.HasEntered(holder.get()));
  EXPECT_TRUE(gate_.empty());
}

// Without this a holder could read while the values are written.
TEST_F(CommitGateTest, Leave_WaitsForDecisionOfClosedGate) {
  Stage();
  const auto leaver = Holder();
  const auto stayer = Holder();
  gate_.Enter(leaver);
  gate_.Enter(stayer);
  for (const bool rewrites : {false, true}) {
    if (rewrites) gate_.Enter(leaver);
    ASSERT_EQ(gate_.Close(), 2u);
    absl::Notification left;
    bool out = false;
    std::thread leaves([&] {
      out = gate_.Leave(leaver.get());
      left.Notify();
    });
    EXPECT_FALSE(left.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
    if (rewrites) {
      gate_.EndLeases();
    } else {
      gate_.Reopen(absl::FailedPreconditionError("it is pinned"));
    }
    leaves.join();
    EXPECT_EQ(out, !rewrites);
    if (!rewrites) {
      EXPECT_EQ(gate_.refusal().message(), "it is pinned");
    }
  }
  EXPECT_TRUE(gate_.empty());
}

}  // namespace
}  // namespace tensorcast
