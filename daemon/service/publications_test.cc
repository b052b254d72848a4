#include "daemon/service/publications.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

TEST(Publications, ProtectUntilTheHeartbeatAfterTheirEnd) {
  Publications publications;
  publications.BeginHeartbeat();
  EXPECT_FALSE(publications.Protects("a"));
  {
    const Publications::Hold one(&publications, "a", [](const std::string&) {});
    const Publications::Hold another(&publications, "a", [](const std::string&) {});
    publications.BeginHeartbeat();
    EXPECT_TRUE(publications.Protects("a"));
    EXPECT_FALSE(publications.Protects("b"));
  }
  EXPECT_TRUE(publications.Protects("a"));  // the answer under way was made before it was published
  publications.BeginHeartbeat();
  EXPECT_FALSE(publications.Protects("a"));
}

TEST(Publications, WhatAPutMadeGoesWithItWhenItFailsAndStaysWhenItIsPublished) {
  Publications publications;
  std::vector<std::string> dropped;
  const auto drop = [&dropped](const std::string& replica_id) { dropped.push_back(replica_id); };
  {
    Publications::Hold published(&publications, "a", drop);
    published.Made("kept");
    published.Published();
  }
  EXPECT_THAT(dropped, ::testing::IsEmpty());
  {
    Publications::Hold failed(&publications, "a", drop);
    failed.Made("cpu");
    failed.Made("disk");
  }
  EXPECT_THAT(dropped, ::testing::ElementsAre("cpu", "disk"));
}

// The second found what the first had made, and took it for its own.
TEST(Publications, WhatAPutMadeThatFailsStaysForAnotherOfTheSameContentUnlessThatFailsToo) {
  for (const bool published : {true, false}) {
    Publications publications;
    std::vector<std::string> dropped;
    const auto drop = [&dropped](const std::string& replica_id) { dropped.push_back(replica_id); };
    std::optional<Publications::Hold> first(std::in_place, &publications, "a", drop);
    first->Made("cpu");
    std::optional<Publications::Hold> second(std::in_place, &publications, "a", drop);
    first.reset();
    EXPECT_THAT(dropped, ::testing::IsEmpty());
    if (published) second->Published();
    second.reset();
    EXPECT_EQ(dropped, published ? std::vector<std::string>() : std::vector<std::string>{"cpu"});
  }
}

}  // namespace
}  // namespace tensorcast::daemon
