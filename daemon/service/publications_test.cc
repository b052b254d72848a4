#include "daemon/service/publications.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::publications_test {
namespace {

bool Protects(Publications& publications, const std::string& artifact_id) {
  bool dropped = false;
  publications.DropUnlessProtected(artifact_id, [&dropped] { dropped = true; });
  return !dropped;
}

TEST(Publications, Publication_ProtectsArtifactUntilNextHeartbeat) {
  Publications publications;
  publications.BeginHeartbeat();
  EXPECT_FALSE(Protects(publications, "a"));
  {
    const Publications::Hold one(&publications, "a", [](const std::string&) {});
    const Publications::Hold another(&publications, "a", [](const std::string&) {});
    publications.BeginHeartbeat();
    EXPECT_TRUE(Protects(publications, "a"));
    EXPECT_FALSE(Protects(publications, "b"));
  }
  EXPECT_TRUE(Protects(publications, "a"));  // the answer under way was made before it was published
  publications.BeginHeartbeat();
  EXPECT_FALSE(Protects(publications, "a"));
}

TEST(Publications, FailedPut_DropsItsReplicas) {
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

TEST(Publications, Put_WaitsWhileItsArtifactIsDropped) {
  constexpr absl::Duration kNever = absl::Milliseconds(20);
  for (const bool deleted : {true, false}) {
    Publications publications;
    absl::Notification held;
    std::thread put;
    const auto drop = [&] {
      put = std::thread([&] {
        const Publications::Hold hold(&publications, "a", [](const std::string&) {});
        held.Notify();
      });
      const Publications::Hold another(&publications, "b", [](const std::string&) {});
      EXPECT_FALSE(held.WaitForNotificationWithTimeout(kNever)) << "it would find what is about to go";
    };
    if (deleted) {
      publications.DropUnlessProtected("a", drop);
    } else {
      Publications::Hold failed(&publications, "a", [&drop](const std::string&) { drop(); });
      failed.Made("cpu");
    }
    held.WaitForNotification();
    put.join();
  }
}

// The second found what the first had made, and took it for its own.
TEST(Publications, ReplicaOfFailedPut_StaysWhenOtherPutIsPublished) {
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
}  // namespace tensorcast::daemon::publications_test
