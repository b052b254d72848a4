// A group that this node cannot start. wide_broadcasts_test.cc of core/engine tests all others.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/steady_time.h"
#include "base/testing/no_threads.h"
#include "core/broadcast/wide_broadcasts.h"

namespace tensorcast::wide_broadcasts_start_test {
namespace {

class RecordingMeeting final : public BroadcastMeeting {
 public:
  absl::StatusOr<WideRoot> Meet(const RequestContext&, const WideGroupPlan&,
                                const std::optional<WideRoot>&) override {
    return absl::UnavailableError("this test has no other node");
  }
  void GiveUp(const WideGroupPlan& plan, const absl::Status& why) override {
    groups.push_back(plan.group_id);
    reasons.push_back(why);
  }

  std::vector<std::string> groups;
  std::vector<absl::Status> reasons;
};

TEST(WideBroadcasts, BeginWithoutThreads_TellsOtherNodes) {
  WideBroadcasts broadcasts(/*table=*/nullptr, /*broadcaster=*/nullptr, /*patience=*/absl::Seconds(1));
  const auto meeting = std::make_shared<RecordingMeeting>();
  const WideGroupPlan plan{.group_id = "g",
                           .artifact_id = "tc2:x",
                           .world_size = 2,
                           .forms_until = SteadyNow() + absl::Seconds(60),
                           .meeting = meeting};
  if (!testing::WithoutThreads([&] { broadcasts.Begin(plan); })) {
    GTEST_SKIP() << "the kernel does not let this test refuse threads";
  }
  ASSERT_EQ(meeting->groups, std::vector<std::string>{"g"});
  EXPECT_EQ(meeting->reasons[0].code(), absl::StatusCode::kResourceExhausted) << meeting->reasons[0];
}

}  // namespace
}  // namespace tensorcast::wide_broadcasts_start_test
