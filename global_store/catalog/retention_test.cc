// How many versions of a key are kept, and what happens to the others.
#include "global_store/catalog/retention.h"

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::retention_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Retention, KeepRule_WithLongestPrefixApplies) {
  const auto retention = Retention::Parse(2, {"llama/=3", "llama/rl/=1", "a=b=7"});
  ASSERT_TRUE(retention.ok()) << retention.status();
  EXPECT_EQ(retention->KeepOf("gemma/prod"), 2u);
  EXPECT_EQ(retention->KeepOf("llama/prod"), 3u);
  EXPECT_EQ(retention->KeepOf("llama/rl/policy"), 1u);
  EXPECT_EQ(retention->KeepOf("a=bc"), 7u);
}

TEST(Retention, InvalidRetentionConfiguration_IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Retention::Parse(0, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Retention::Parse(1001, {}).status()));
  for (const char* const pair :
       {"llama/", "=3", "llama/=", "llama/=0", "llama/=1001", "llama/=-1", "llama/=x"}) {
    const absl::Status status = Retention::Parse(2, {pair}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pair;
    EXPECT_THAT(status.message(), HasSubstr(pair));
  }
  EXPECT_THAT(Retention::Parse(2, {"a=1", "a=2"}).status().message(), HasSubstr("the same prefix"));
}

class Versions : public DirectoryTest {
 protected:
  Versions() : DirectoryTest({.retention = {.keep = 2, .by_prefix = {{"three/", 3}}}}) {}

  void SetUp() override { Register("a"); }
  // A put of a new artifact, with a replica that is called as it is.
  absl::StatusOr<PublishPlan> Put(const std::string& artifact, const std::string& key,
                                  std::optional<uint32_t> keep = std::nullopt) {
    auto plan = directory_.PreparePublish({.node = Id("a"),
                                           .artifact = {.artifact_id = artifact},
                                           .replica = SomeReplica("r-" + artifact, artifact),
                                           .key = key,
                                           .keep = keep},
                                          wall_now());
    if (!plan.ok()) return plan;
    directory_.Apply(plan->facts, now_);
    directory_.AddPublishedReplica(Id("a"), SomeReplica("r-" + artifact, artifact));
    return plan;
  }
  std::vector<std::string> Earlier(const std::string& key) {
    std::vector<std::string> artifacts;
    const absl::StatusOr<KeyRecord> record = directory_.catalog().ResolveKey(key);
    if (!record.ok()) return {"not bound"};
    for (const KeyVersion& version : record->earlier) artifacts.push_back(version.artifact_id);
    return artifacts;
  }
  bool IsReleased(const std::string& artifact) { return DescribeArtifact(directory_, artifact)->released; }
  // As the service does it.
  EvictionDecision EvictVersion(const std::string& artifact) {
    EvictionDecision decision = Evict("a", "r-" + artifact);
    if (!decision.release_first) return decision;
    directory_.Apply(directory_.evictions().PrepareReleaseOf({"a", "r-" + artifact}, {}, wall_now()), now_);
    return Evict("a", "r-" + artifact);
  }
};

TEST_F(Versions, ReboundKey_ReleasesVersionsBeyondKeep) {
  for (const char* const artifact : {"v1", "v2", "v3", "v4"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_THAT(Earlier("k"), ElementsAre("v3"));
  EXPECT_TRUE(IsReleased("v1"));
  EXPECT_TRUE(IsReleased("v2"));
  EXPECT_FALSE(IsReleased("v3"));
  EXPECT_THAT(DescribeArtifact(directory_, "v3")->kept_by, ElementsAre("k"));
  EXPECT_THAT(DescribeArtifact(directory_, "v4")->keys, ElementsAre("k"));
}

TEST_F(Versions, KeepOfPut_OverridesPrefixAndDefault) {
  for (const char* const artifact : {"v1", "v2", "v3", "v4"}) {
    ASSERT_TRUE(Put(artifact, "two").ok());
    ASSERT_TRUE(Bind("three/k", artifact).ok());
    ASSERT_TRUE(Bind("three/given", artifact, std::nullopt, 1).ok());
  }
  EXPECT_THAT(Earlier("two"), ElementsAre("v3"));
  EXPECT_THAT(Earlier("three/k"), ElementsAre("v3", "v2"));
  EXPECT_THAT(Earlier("three/given"), IsEmpty());
}

TEST_F(Versions, KeepOfPut_AppliesUntilNextPutWithKeepOrDeletion) {
  ASSERT_TRUE(Put("v1", "k", 3).ok());
  for (const char* const artifact : {"v2", "v3", "v4"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_THAT(Earlier("k"), ElementsAre("v3", "v2"));
  ASSERT_TRUE(Put("v5", "k", 1).ok());
  EXPECT_THAT(Earlier("k"), IsEmpty());
  ASSERT_TRUE(Put("v6", "k").ok());
  EXPECT_THAT(Earlier("k"), IsEmpty());
  ASSERT_TRUE(Unbind("k").ok());
  for (const char* const artifact : {"v7", "v8"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_THAT(Earlier("k"), ElementsAre("v7")) << "the key was deleted, and what it was given with it";
}

TEST_F(Versions, PutWithInvalidKeep_IsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Put("v1", "k", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Put("v1", "k", 1001).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Put("v1", "", 3).status())) << "there is no key to keep it";
}

TEST_F(Versions, RepeatedBindOfSameArtifact_IsOneVersion) {
  for (const char* const artifact : {"v1", "v2", "v2", "v2"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_THAT(Earlier("k"), ElementsAre("v1"));
  ASSERT_TRUE(Put("v1", "k").ok());
  EXPECT_THAT(Earlier("k"), ElementsAre("v2"));
}

TEST_F(Versions, LastCopyOfReleasedVersion_IsEvictedWithItsManifest) {
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_TRUE(EvictVersion("v1").granted);
  EXPECT_TRUE(absl::IsNotFound(DescribeArtifact(directory_, "v1").status()));
  EXPECT_TRUE(absl::IsNotFound(Bind("late", "v1").status()));
  EXPECT_THAT(Beat("a").forgotten_artifacts, ElementsAre("v1"));
  // What is kept stays, and the refusal says for which key.
  const EvictionDecision kept = EvictVersion("v2");
  EXPECT_FALSE(kept.granted);
  EXPECT_THAT(kept.reason, HasSubstr("earlier version of key k, and the key keeps 2"));
  EXPECT_THAT(EvictVersion("v3").reason, HasSubstr("the artifact that key k names"));
}

TEST_F(Versions, ReleasedVersionWithAnotherCopy_KeepsItsManifest) {
  Register("b");
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  Update("b", {SomeReplica("other", "v1")});
  EXPECT_TRUE(EvictVersion("v1").granted);
  EXPECT_TRUE(DescribeArtifact(directory_, "v1").ok()) << "the other node still has it";
  EXPECT_TRUE(Evict("b", "other").release_first);
}

TEST_F(Versions, ArtifactPutWithoutKey_IsNotReleased) {
  ASSERT_TRUE(Put("nameless", "").ok());
  const EvictionDecision decision = EvictVersion("nameless");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.reason, HasSubstr("no key names"));
  EXPECT_THAT(decision.reason, HasSubstr("tensorcast gc"));
}

TEST_F(Versions, ReleasedVersionPutAgainWithoutKey_IsKept) {
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  ASSERT_TRUE(Put("v1", "").ok());
  EXPECT_FALSE(IsReleased("v1"));
  EXPECT_FALSE(EvictVersion("v1").granted);
}

TEST_F(Versions, UnkeyedArtifactBoundLater_BecomesAVersion) {
  ASSERT_TRUE(Put("v1", "").ok());
  ASSERT_TRUE(Bind("k", "v1").ok());
  for (const char* const artifact : {"v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_TRUE(EvictVersion("v1").granted);
}

TEST_F(Versions, VersionKeptByOtherKey_IsNotReleased) {
  for (const char* const artifact : {"v1", "v2"}) ASSERT_TRUE(Put(artifact, "k").ok());
  ASSERT_TRUE(Bind("other", "v1").ok());
  for (const char* const artifact : {"v3", "v4"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_FALSE(IsReleased("v1"));
  ASSERT_TRUE(Bind("other", "v4").ok());
  EXPECT_FALSE(IsReleased("v1")) << "the other key keeps it";
  ASSERT_TRUE(Bind("other", "v3").ok());
  EXPECT_TRUE(IsReleased("v1"));
}

TEST_F(Versions, DeletedKey_LeavesItsArtifactAndReleasesTheOthers) {
  for (const char* const artifact : {"v1", "v2"}) ASSERT_TRUE(Put(artifact, "k").ok());
  ASSERT_TRUE(Unbind("k").ok());
  EXPECT_TRUE(IsReleased("v1"));
  EXPECT_FALSE(IsReleased("v2"));
  EXPECT_FALSE(EvictVersion("v2").granted);
}

TEST_F(Versions, DeletedVersion_IsNoLongerKeptByItsKey) {
  for (const char* const artifact : {"v1", "v2"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_THAT(ListArtifacts(directory_, "", {}, {.unkeyed_only = true}).artifacts, IsEmpty());
  Delete("v1");
  EXPECT_THAT(Earlier("k"), IsEmpty());
}

TEST_F(Versions, ManifestOfReleasedVersion_GoesWithItsLastReplica) {
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  EXPECT_FALSE(directory_.HasReleases(now_));
  Update("a", {SomeReplica("r-v1", "v1", LocationKind::kCpu, ReplicaState::kGone)});
  ASSERT_TRUE(directory_.HasReleases(now_));
  const DurableFacts facts = directory_.PrepareReleases(now_, wall_now());
  ASSERT_THAT(facts.artifacts, SizeIs(1));
  EXPECT_EQ(facts.artifacts[0].artifact_id, "v1");
  directory_.Apply(facts, now_);
  EXPECT_FALSE(directory_.HasReleases(now_));
}

TEST_F(Versions, ReleasedVersionOnNodeThatIsAway_IsKeptForADay) {
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  now_ += absl::Minutes(1);
  directory_.Tick(now_);
  EXPECT_EQ(directory_.counts().nodes, 0u);
  EXPECT_FALSE(directory_.HasReleases(now_)) << "it may come back with it";
  now_ += absl::Hours(25);
  directory_.Tick(now_);
  EXPECT_TRUE(directory_.HasReleases(now_));
}

TEST_F(Versions, Failover_KeepsReleasesAndWaitsForNodes) {
  DurableFacts stored{
      .artifacts = {{.artifact_id = "v1", .versioned = true},
                    {.artifact_id = "v2", .versioned = true},
                    {.artifact_id = "v3", .versioned = true}},
      .keys = {{.name = "k", .artifact_id = "v3", .revision = 3, .earlier = {{"v2", 2, wall_now()}}}}};
  Directory next(options_, &secrets_);
  next.Load(stored, now_);
  EXPECT_EQ(DescribeArtifact(next, "v2")->kept_by, std::vector<std::string>{"k"});
  EXPECT_TRUE(DescribeArtifact(next, "v1")->released);
  EXPECT_FALSE(next.HasReleases(now_ + options_.membership.node_ttl))
      << "a node may not have said yet what it holds";
  EXPECT_TRUE(next.HasReleases(now_ + 6 * options_.membership.node_ttl));
}

TEST_F(Versions, LoadWithSmallerKeep_ReleasesOlderVersions) {
  DurableFacts stored{
      .artifacts = {{.artifact_id = "v2", .versioned = true},
                    {.artifact_id = "v3", .versioned = true},
                    {.artifact_id = "v4", .versioned = true}},
      .keys = {{.name = "k",
                .artifact_id = "v4",
                .revision = 4,
                .earlier = {{"v3", 3, wall_now()}, {"v2", 2, wall_now()}, {"v1", 1, wall_now()}}}}};
  directory_.Apply(stored, now_);
  EXPECT_THAT(Earlier("k"), ElementsAre("v3"));
  EXPECT_TRUE(IsReleased("v2"));
}

TEST_F(Versions, DrainingNode_EvictsReleasedVersions) {
  for (const char* const artifact : {"v1", "v2", "v3"}) ASSERT_TRUE(Put(artifact, "k").ok());
  ASSERT_TRUE(directory_.DrainNode("a", true).ok());
  EXPECT_THAT(Beat("a").evict_replicas, ElementsAre("r-v1"));
}

TEST_F(Versions, TombstonesOfVersions_AreBounded) {
  for (int i = 0; i < 3000; ++i) {
    now_ += absl::Seconds(1);
    directory_.Apply({.artifacts = {{.artifact_id = absl::StrCat("v", i),
                                     .deleted = true,
                                     .updated = wall_now(),
                                     .versioned = true}}},
                     now_);
  }
  const absl::Time oldest = wall_now() - kVersionTombstoneAge;
  EXPECT_EQ(directory_.catalog().VersionTombstonesFrom(oldest), wall_now() - absl::Seconds(1023));
  directory_.catalog().Purge(oldest, directory_.catalog().VersionTombstonesFrom(oldest));
  EXPECT_EQ(directory_.catalog().VersionTombstonesFrom(oldest), oldest) << "few enough are left";
}

}  // namespace
}  // namespace tensorcast::global_store::retention_test
