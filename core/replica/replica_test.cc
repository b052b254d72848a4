#include "core/replica/replica.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tensorcast::replica_test {
namespace {

TEST(Location, Location_SurvivesTextRoundTrip) {
  for (const Location location : {Location{LocationKind::kCpu, 0}, Location{LocationKind::kDisk, 0},
                                  Location{LocationKind::kGpu, 0}, Location{LocationKind::kGpu, 15}}) {
    auto parsed = Location::Parse(location.ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, location);
  }
}

TEST(Location, LocationParse_RefusesInvalidText) {
  for (const char* text :
       {"", "CPU", "gpu", "gpu:", "gpu:-1", "gpu:x", "gpu:01", "gpu: 1", "gpu:99999999999", "cpu:0"}) {
    EXPECT_EQ(Location::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ReplicaState, ReplicaStateTransitions_FollowTheDesign) {
  using enum ReplicaState;
  const std::set<std::pair<ReplicaState, ReplicaState>> legal = {
      {kAllocating, kFilling}, {kAllocating, kFailed}, {kFilling, kReady},
      {kFilling, kPartial},    {kFilling, kFailed},    {kPartial, kFilling},
      {kPartial, kDraining},   {kReady, kDraining},    {kDraining, kGone},
  };
  const auto all = {kAllocating, kFilling, kPartial, kReady, kDraining, kGone, kFailed};
  for (const ReplicaState from : all) {
    for (const ReplicaState to : all) {
      EXPECT_EQ(IsLegalTransition(from, to), legal.contains({from, to}))
          << ReplicaStateName(from) << " -> " << ReplicaStateName(to);
    }
  }
}

}  // namespace
}  // namespace tensorcast::replica_test
