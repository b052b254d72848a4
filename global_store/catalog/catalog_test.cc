#include "global_store/catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Time kNow = absl::UnixEpoch();
const SteadyTime kSteadyNow = SteadyTime() + absl::Seconds(1);

class CatalogTest : public ::testing::Test {
 protected:
  void Apply(const DurableFacts& facts) {
    for (const ArtifactRecord& record : facts.artifacts) catalog_.Apply(record);
    for (const KeyRecord& record : facts.keys) catalog_.Apply(record);
  }
  void Publish(const std::string& artifact, const std::optional<Origin>& origin = std::nullopt) {
    ArtifactRecord record{.artifact_id = artifact};
    if (origin.has_value()) record.origins.push_back(*origin);
    Apply(catalog_.PreparePublish(record, std::nullopt, kNow)->facts);
  }
  void Bind(const std::string& key, const std::string& artifact) {
    Apply(catalog_.PrepareBindKey({.key = key, .artifact_id = artifact}, kNow)->facts);
  }

  Catalog catalog_{Retention{.keep = 1}};
};

TEST_F(CatalogTest, PreparedFacts_ChangeNothingBeforeApply) {
  const auto plan = catalog_.PreparePublish({.artifact_id = "x"}, std::nullopt, kNow);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(absl::IsNotFound(catalog_.Get("x").status()));
  Apply(plan->facts);
  EXPECT_TRUE(catalog_.Get("x").ok());
}

TEST_F(CatalogTest, RebindingAKey_ReleasesTheVersionItKeepsNoLonger) {
  Publish("x");
  Publish("y");
  Bind("k", "x");
  EXPECT_THAT(catalog_.released(), IsEmpty());
  Bind("k", "y");
  EXPECT_THAT(catalog_.released(), ElementsAre("x"));
  EXPECT_THAT(catalog_.WhyItStays("y", ""), HasSubstr("key k names"));
}

TEST_F(CatalogTest, DeletedArtifact_LeavesATombstoneUntilPublishedAgain) {
  Publish("x");
  Apply(*catalog_.PrepareDeleteArtifact("x", kNow));
  EXPECT_EQ(catalog_.Find("x"), nullptr);
  EXPECT_TRUE(catalog_.IsDeleted("x"));
  Publish("x");
  EXPECT_FALSE(catalog_.IsDeleted("x"));
}

TEST_F(CatalogTest, GoneOrigin_StaysGoneUntilRenewed) {
  const Origin origin{.node_id = "n", .objects = {{.uri = "/m"}}};
  Publish("x", origin);
  catalog_.NoteOrigin("x", origin, OriginFinding::kGone, "it was deleted", kSteadyNow);
  catalog_.NoteOrigin("x", origin, OriginFinding::kIntact, "", kSteadyNow);
  EXPECT_TRUE(catalog_.Find("x")->IsGone(origin));
  catalog_.RenewOrigin("x", "n");
  EXPECT_FALSE(catalog_.Find("x")->IsGone(origin));
}

}  // namespace
}  // namespace tensorcast::global_store
