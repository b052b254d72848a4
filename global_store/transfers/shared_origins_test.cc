// Receivers of an artifact that no node has, and that any node may read from an object store.
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::shared_origins_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kObject[] = "s3://bucket/m";

// Node away imported x, and is gone.
class ColdFleet : public DirectoryTest {
 protected:
  ColdFleet() : DirectoryTest({.transfers = {.filling_lanes = {"ucx"}}}) {}

  void SetUp() override {
    for (const char* node : {"a", "b", "c"}) Register(node);
    directory_.Apply({.artifacts = {{.artifact_id = "x", .origins = {Object(kObject)}}}}, now_);
  }
  static Origin Object(const std::string& uri) {
    return {.node_id = "away", .objects = {{uri, 1, "version:1"}}};
  }
  GrantOffer Ask(const std::string& receiver, const std::string& held_origin = "",
                 const std::vector<std::string>& failed_origins = {}, const std::string& lane = "") {
    auto offer = directory_.transfers().RequestGrant({.receiver = Id(receiver),
                                                      .artifact_id = "x",
                                                      .destination = {.kind = LocationKind::kCpu},
                                                      .required_lane = lane,
                                                      .sources = 6,
                                                      .held_origin = held_origin,
                                                      .failed_origins = failed_origins},
                                                     now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    return offer.value_or(GrantOffer{});
  }
  void Fills(const std::string& node) {
    Update(node, {SomeReplica("of-" + node, "x", LocationKind::kCpu, ReplicaState::kFilling)});
  }
  static std::vector<std::string> SourcesIn(const GrantOffer& offer) {
    std::vector<std::string> nodes;
    for (const OfferedGrant& granted : offer.granted) nodes.push_back(granted.grant.source_node);
    return nodes;
  }
};

TEST_F(ColdFleet, EachReceiver_ReadsItsOwnShareAndPullsFromOthers) {
  const GrantOffer first = Ask("a");
  ASSERT_TRUE(first.shared.has_value());
  EXPECT_EQ(first.shared->origin, Object(kObject));
  EXPECT_EQ(first.shared->share, 0u);
  EXPECT_THAT(first.granted, IsEmpty());
  EXPECT_LT(first.look_again, absl::Seconds(1)) << "others may come";
  Fills("a");
  const GrantOffer second = Ask("b");
  ASSERT_TRUE(second.shared.has_value());
  EXPECT_EQ(second.shared->share, 1u);
  EXPECT_EQ(second.shared->shares, first.shared->shares);
  EXPECT_THAT(SourcesIn(second), ElementsAre("a"));
  Fills("b");
  // The first looks again: it goes on with its share, and is fed by the second though that one pulls from it.
  const GrantOffer again = Ask("a", kObject);
  EXPECT_FALSE(again.shared.has_value());
  EXPECT_THAT(SourcesIn(again), ElementsAre("b"));
}

TEST_F(ColdFleet, ReadyReplica_IsReadInsteadOfTheOrigin) {
  Update("a", {SomeReplica("r", "x")});
  const GrantOffer offer = Ask("b");
  EXPECT_FALSE(offer.shared.has_value());
  EXPECT_THAT(SourcesIn(offer), ElementsAre("a"));
}

TEST_F(ColdFleet, ReceiverThatCannotRead_PullsFromThoseThatDo) {
  const GrantOffer none = Ask("a", "", {kObject});
  EXPECT_FALSE(none.shared.has_value());
  EXPECT_THAT(none.granted, IsEmpty());
  EXPECT_EQ(none.retry_after, absl::ZeroDuration()) << "no node reads it";
  ASSERT_TRUE(Ask("b").shared.has_value());
  const GrantOffer waits = Ask("a", "", {kObject});
  EXPECT_THAT(waits.waiting_for, ElementsAre(HasSubstr("name-b")));
  Fills("b");
  EXPECT_THAT(SourcesIn(Ask("a", "", {kObject})), ElementsAre("b"));
  EXPECT_FALSE(Ask("c", "", {}, /*lane=*/"ucx").shared.has_value());
}

// Two that only have each other would wait for ever.
TEST_F(ColdFleet, ReaderThatFailed_LeadsToNoBytes) {
  ASSERT_TRUE(Ask("a").shared.has_value());
  Fills("a");
  ASSERT_THAT(SourcesIn(Ask("b", "", {kObject})), ElementsAre("a"));
  Fills("b");
  const GrantOffer failed = Ask("a", "", {kObject});
  EXPECT_THAT(failed.granted, IsEmpty());
  EXPECT_EQ(failed.retry_after, absl::ZeroDuration());
}

TEST_F(ColdFleet, SecondOrigin_IsReadWhereTheFirstFails) {
  directory_.Apply(
      {.artifacts = {{.artifact_id = "x", .origins = {Object("hf://o/n@c/m"), Object(kObject)}}}}, now_);
  EXPECT_EQ(Ask("a").shared->origin, Object("hf://o/n@c/m"));
  EXPECT_EQ(Ask("a", "", {"hf://o/n@c/m"}).shared->origin, Object(kObject));
}

TEST_F(ColdFleet, Readers_AreBoundedAndSharesAreGivenAgain) {
  std::vector<uint32_t> shares;
  for (int i = 0; i < 20; ++i) {
    const std::string node = absl::StrCat("n", i);
    Register(node);
    const GrantOffer offer = Ask(node);
    Fills(node);
    if (offer.shared.has_value()) shares.push_back(offer.shared->share);
  }
  std::vector<uint32_t> all(16);
  for (uint32_t share = 0; share < all.size(); ++share) all[share] = share;
  EXPECT_EQ(shares, all);
  Update("n3", {SomeReplica("of-n3", "x", LocationKind::kCpu, ReplicaState::kGone)});
  now_ += absl::Seconds(6);
  EXPECT_EQ(Ask("c").shared->share, 3u);
}

}  // namespace
}  // namespace tensorcast::global_store::shared_origins_test
