#include "global_store/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FixedSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return "grant"; }
  std::string NewGrantKey() override { return "key"; }
};

class MembershipTest : public ::testing::Test {
 protected:
  static NodeFacts Facts(const std::string& id, uint64_t incarnation = 1) {
    return {.node_id = id, .name = "name-" + id, .incarnation = incarnation, .host_id = "host"};
  }
  void Register(const NodeFacts& facts) {
    ASSERT_TRUE(nodes_.CheckRegistration(facts).ok());
    nodes_.Register(facts, {}, now_);
  }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  const MembershipOptions options_{};
  FixedSecrets secrets_;
  Membership nodes_{options_, &secrets_};
};

TEST_F(MembershipTest, OlderIncarnation_IsRefusedWhileNewerOneIsAlive) {
  Register(Facts("a", 2));
  EXPECT_TRUE(absl::IsAborted(nodes_.CheckIdentity({"a", 1})));
  EXPECT_TRUE(absl::IsNotFound(nodes_.CheckIdentity({"a", 3})));
  EXPECT_TRUE(nodes_.CheckIdentity({"a", 2}).ok());
}

TEST_F(MembershipTest, RemovedNode_LeavesTheIndices) {
  Register(Facts("a"));
  Register(Facts("b"));
  EXPECT_THAT(nodes_.OnHost("host"), ElementsAre("a", "b"));
  nodes_.Remove("a");
  EXPECT_THAT(nodes_.OnHost("host"), ElementsAre("b"));
  EXPECT_EQ(nodes_.FindNamed("name-a"), nullptr);
  EXPECT_EQ(nodes_.FindNamed("name-b"), nodes_.Find("b"));
}

TEST_F(MembershipTest, SilentNode_IsNamedOnceItsTimeToLiveIsOver) {
  Register(Facts("a"));
  now_ += options_.node_ttl;
  EXPECT_THAT(nodes_.TakeStock(now_), IsEmpty());
  now_ += absl::Nanoseconds(1);
  EXPECT_THAT(nodes_.TakeStock(now_), SizeIs(1));
  nodes_.ExtendLiveness(absl::Seconds(1));
  EXPECT_THAT(nodes_.TakeStock(now_), IsEmpty());
}

TEST_F(MembershipTest, BoundNodeId_IsRefusedToOtherNames) {
  const auto binding = nodes_.PrepareBindNode(Facts("a"));
  ASSERT_TRUE(binding.ok());
  nodes_.Apply(binding->nodes.front());
  EXPECT_TRUE(nodes_.CheckBinding("a", "name-a").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(nodes_.CheckBinding("a", "other")));
}

}  // namespace
}  // namespace tensorcast::global_store
