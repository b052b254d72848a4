#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "global_store/transfers/waits.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CountedSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return absl::StrCat("t", ++grants_); }
  std::string NewGrantKey() override { return "key"; }

 private:
  int grants_ = 0;
};

// Rooms of their own, without a directory.
class GrantsAndWaits : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string id : {"a", "b", "c"}) {
      nodes_.Register({.node_id = id, .name = id, .incarnation = 1}, {}, now_);
      inventory_.Admit(*nodes_.Find(id));
    }
  }
  void Hold(const std::string& node, ReplicaState state) {
    inventory_.Update(node, ++sequence_, {{.id = node, .artifact_id = "x", .location = {}, .state = state}});
  }
  std::string Give(const std::string& source, const std::string& receiver) {
    const GrantRequest request{.receiver = {receiver, 1}, .artifact_id = "x"};
    return grants_.Give(request, *nodes_.Find(source), source, "tcp", now_).grant_id;
  }
  bool IsRooted(const std::string& node, const std::string& receiver) {
    Waits::Search search{.receiver = nodes_.Find(receiver), .now = now_};
    return waits_.IsRooted(*nodes_.Find(node), "x", search);
  }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  uint64_t sequence_ = 0;
  CountedSecrets secrets_;
  Catalog catalog_{Retention{}};
  Membership nodes_{{}, &secrets_};
  Inventory inventory_{nodes_, catalog_};
  Grants grants_{absl::Seconds(30), nodes_, &secrets_};
  Waits waits_{nodes_, inventory_, grants_};
};

TEST_F(GrantsAndWaits, ReceiversOfOneReplica_HaveTheLowestFreeShares) {
  const std::string first = Give("a", "b");
  const std::string second = Give("a", "c");
  EXPECT_EQ(grants_.Find(second)->share, 1u);
  grants_.Complete(first, GrantEnd::kSucceeded, now_);
  EXPECT_EQ(grants_.Find(Give("a", "b"))->share, 0u);
}

TEST_F(GrantsAndWaits, UnrenewedGrant_ExpiresAndBothEndsAreTold) {
  const std::string renewed = Give("a", "b");
  const std::string silent = Give("a", "c");
  now_ += absl::Seconds(20);
  grants_.Renew("b", {renewed, silent}, now_);
  now_ += absl::Seconds(11);
  grants_.Tick(now_);
  EXPECT_NE(grants_.Find(renewed), nullptr);
  EXPECT_EQ(grants_.Find(silent), nullptr) << "only its receiver renews a grant";
  EXPECT_THAT(grants_.RevokedOf("a"), ElementsAre(silent));
  EXPECT_THAT(grants_.RevokedOf("c"), ElementsAre(silent));
  EXPECT_THAT(grants_.TakeEnded(), SizeIs(1));
}

TEST_F(GrantsAndWaits, OvertakenSource_RestsTwiceAsLongTheNextTime) {
  grants_.Complete(Give("a", "b"), GrantEnd::kOvertaken, now_);
  const absl::Duration rest = grants_.Of("a").overtaken_until - now_;
  now_ += rest;
  grants_.Complete(Give("a", "b"), GrantEnd::kOvertaken, now_);
  EXPECT_EQ(grants_.Of("a").overtaken_until - now_, 2 * rest);
}

TEST_F(GrantsAndWaits, NodeThatGoes_TakesItsGrantsAlong) {
  Give("a", "b");
  Give("c", "a");
  grants_.EndOf("a", now_);
  EXPECT_EQ(grants_.size(), 0u);
  EXPECT_THAT(grants_.Of("b").receiving, IsEmpty());
  EXPECT_THAT(grants_.Of("c").serving, IsEmpty());
}

TEST_F(GrantsAndWaits, ChainOfGrants_IsRootedWhereItEndsAtAWholeReplica) {
  Hold("a", ReplicaState::kReady);
  Hold("b", ReplicaState::kFilling);
  Give("a", "b");
  EXPECT_TRUE(IsRooted("b", "c"));
  EXPECT_FALSE(IsRooted("b", "a")) << "it leads only to the receiver itself";
}

TEST_F(GrantsAndWaits, NodesThatWaitForEachOther_AreNotRooted) {
  Hold("a", ReplicaState::kFilling);
  Hold("b", ReplicaState::kFilling);
  waits_.Begin("x", "a", {.nodes = {"b"}, .until = now_ + absl::Seconds(1)});
  EXPECT_TRUE(IsRooted("a", "c"));
  waits_.Begin("x", "b", {.nodes = {"a"}, .until = now_ + absl::Seconds(1)});
  EXPECT_FALSE(IsRooted("a", "c"));
  waits_.End("x", "b");
  EXPECT_TRUE(IsRooted("a", "c"));
}

}  // namespace
}  // namespace tensorcast::global_store
