#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::facts_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Keys : public DirectoryTest {
 protected:
  void SetUp() override {
    Publish("x");
    Publish("y");
  }
};

TEST_F(Keys, KeyRevisions_CountFromOne) {
  EXPECT_EQ(Bind("k", "x")->revision, 1u);
  EXPECT_EQ(Bind("k", "y")->revision, 2u);
  EXPECT_EQ(Bind("k", "y")->revision, 3u);
  auto key = directory_.catalog().ResolveKey("k");
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->artifact_id, "y");
  EXPECT_EQ(key->revision, 3u);
}

TEST_F(Keys, BindKey_ComparesExpectedRevision) {
  EXPECT_TRUE(Bind("k", "x", 0).ok());
  const absl::Status taken = Bind("k", "y", 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(taken));
  EXPECT_THAT(taken.message(), HasSubstr("at revision 1"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Bind("k", "y", 2).status()));
  EXPECT_EQ(Bind("k", "y", 1)->revision, 2u);
  EXPECT_TRUE(absl::IsFailedPrecondition(Bind("other", "x", 1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Unbind("k", 1)));
  EXPECT_TRUE(Unbind("k", 2).ok());
}

TEST_F(Keys, DeletedKey_NeverRepeatsARevision) {
  ASSERT_TRUE(Bind("k", "x").ok());
  ASSERT_TRUE(Bind("k", "y").ok());
  ASSERT_TRUE(Unbind("k").ok());
  EXPECT_TRUE(absl::IsNotFound(directory_.catalog().ResolveKey("k").status()));
  EXPECT_TRUE(absl::IsNotFound(Unbind("k")));
  EXPECT_EQ(Bind("k", "x", 0)->revision, 3u);
}

TEST_F(Keys, BindKey_RefusesUnknownArtifact) { EXPECT_TRUE(absl::IsNotFound(Bind("k", "nothing").status())); }

TEST_F(Keys, BindKey_RefusesUnreadableNames) {
  for (const std::string& name : {std::string(), std::string(513, 'k'), std::string("tc2:abc"),
                                  std::string("a\nb"), std::string("a\0b", 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Bind(name, "x").status())) << name;
  }
  EXPECT_TRUE(Bind(std::string(512, 'k'), "x").ok());
  EXPECT_TRUE(Bind("modèle/prod", "x").ok());
}

TEST_F(Keys, ListKeys_ReturnsPrefixInPages) {
  for (const char* name : {"a", "m/1", "m/2", "m/3", "n"}) ASSERT_TRUE(Bind(name, "x").ok());
  ASSERT_TRUE(Unbind("m/2").ok());
  const auto names = [&](std::string_view prefix, std::string_view after, size_t limit) {
    std::vector<std::string> all;
    for (const KeyRecord& key : directory_.catalog().ListKeys(prefix, after, limit)) all.push_back(key.name);
    return all;
  };
  EXPECT_THAT(names("", "", 10), ElementsAre("a", "m/1", "m/3", "n"));
  EXPECT_THAT(names("m/", "", 10), ElementsAre("m/1", "m/3"));
  EXPECT_THAT(names("m/", "", 1), ElementsAre("m/1"));
  EXPECT_THAT(names("m/", "m/1", 1), ElementsAre("m/3"));
  EXPECT_THAT(names("m/", "m/3", 1), IsEmpty());
  EXPECT_EQ(directory_.counts().keys, 4u);
}

class Artifacts : public DirectoryTest {
 protected:
  absl::StatusOr<PublishPlan> PublishFrom(const PublishRequest& request) {
    auto plan = directory_.PreparePublish(request, wall_now());
    if (plan.ok()) directory_.Apply(plan->facts, now_);
    return plan;
  }
};

TEST_F(Artifacts, RepublishedArtifact_IsKnownAndAddsNoFact) {
  Register("a");
  const PublishRequest request{.node = Id("a"), .artifact = {.artifact_id = "x", .image_bytes = 9}};
  auto first = PublishFrom(request);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->existed);
  now_ += absl::Seconds(5);
  auto second = PublishFrom(request);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->existed);
  EXPECT_TRUE(second->facts.empty());
  EXPECT_EQ(DescribeArtifact(directory_, "x")->record.created, wall_now() - absl::Seconds(5));
}

TEST_F(Artifacts, Publish_AddsArtifactKeyReplicaAndOriginTogether) {
  Register("a");
  Register("b");
  const PublishRequest request{.node = Id("a"),
                               .artifact = {.artifact_id = "x"},
                               .replica = SomeReplica("r", "x"),
                               .origin = Origin{.node_id = "", .objects = {{"/m", 1, "2"}}},
                               .key = "k",
                               .expected_revision = 0};
  auto plan = PublishFrom(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  directory_.AddPublishedReplica(Id("a"), *request.replica);
  EXPECT_EQ(plan->key_revision, 1u);
  const ArtifactView view = *DescribeArtifact(directory_, "x");
  EXPECT_THAT(view.keys, ElementsAre("k"));
  ASSERT_THAT(view.replicas, SizeIs(1));
  ASSERT_THAT(view.record.origins, SizeIs(1));
  EXPECT_EQ(view.record.origins[0].node_id, "a");
  EXPECT_EQ(Offered("b", "x"), "r");
  EXPECT_THAT(Request("b", "x").origins, SizeIs(1));
}

TEST_F(Artifacts, PublishWithUnbindableKey_AddsNoArtifact) {
  Register("a");
  Publish("y");
  ASSERT_TRUE(Bind("k", "y").ok());
  auto plan =
      PublishFrom({.node = Id("a"), .artifact = {.artifact_id = "x"}, .key = "k", .expected_revision = 0});
  EXPECT_TRUE(absl::IsFailedPrecondition(plan.status()));
  EXPECT_TRUE(absl::IsNotFound(DescribeArtifact(directory_, "x").status()));
}

TEST_F(Artifacts, Artifact_KeepsLatestOriginOfEachNode) {
  Register("a");
  Register("b");
  const auto publish = [&](const std::string& node, const std::string& path) {
    return PublishFrom({.node = Id(node),
                        .artifact = {.artifact_id = "x"},
                        .origin = Origin{.node_id = "", .objects = {{path, 1, "2"}}}});
  };
  ASSERT_TRUE(publish("b", "/1").ok());
  ASSERT_TRUE(publish("a", "/2").ok());
  ASSERT_TRUE(publish("b", "/3").ok());
  EXPECT_TRUE(publish("b", "/3")->facts.empty());
  const std::vector<Origin> origins = DescribeArtifact(directory_, "x")->record.origins;
  ASSERT_THAT(origins, SizeIs(2));
  EXPECT_EQ(origins[0].node_id, "a");
  EXPECT_EQ(origins[1].objects[0].uri, "/3");
}

TEST_F(Artifacts, Artifact_KeepsFilesAndObjectsOfOneNode) {
  Register("a");
  for (const char* const uri : {"/m", "s3://bucket/m", "/m", "https://host/m"}) {
    const auto published = PublishFrom({.node = Id("a"),
                                        .artifact = {.artifact_id = "x"},
                                        .origin = Origin{.node_id = "", .objects = {{uri, 1, "2"}}}});
    ASSERT_TRUE(published.ok()) << published.status();
  }
  const std::vector<Origin> origins = DescribeArtifact(directory_, "x")->record.origins;
  std::vector<std::string> uris;
  for (const Origin& origin : origins) {
    EXPECT_EQ(origin.node_id, "a");
    uris.push_back(origin.objects[0].uri);
  }
  EXPECT_THAT(uris, ElementsAre("/m", "https://host/m", "s3://bucket/m"));
}

TEST_F(Artifacts, Publish_RefusesReplicaOfOtherArtifact) {
  Register("a");
  auto plan =
      PublishFrom({.node = Id("a"), .artifact = {.artifact_id = "x"}, .replica = SomeReplica("r", "y")});
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
}

TEST_F(Artifacts, PublishedReplica_DoesNotUndoNewerUpdate) {
  Register("a");
  Publish("x");
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kDraining)});
  directory_.AddPublishedReplica(Id("a"), SomeReplica("r", "x"));
  EXPECT_EQ(DescribeArtifact(directory_, "x")->replicas[0].state, ReplicaState::kDraining);
  directory_.AddPublishedReplica(Id("a", 7), SomeReplica("r2", "x"));
  EXPECT_EQ(directory_.counts().replicas, 1u);
}

TEST_F(Artifacts, DeleteArtifact_RefusesArtifactWithKeys) {
  Publish("x");
  for (const char* name : {"k1", "k2", "k3", "k4", "k5", "k6"}) ASSERT_TRUE(Bind(name, "x").ok());
  const absl::Status refused = directory_.catalog().PrepareDeleteArtifact("x", wall_now()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("k1, k2"), HasSubstr("...")));
  for (const char* name : {"k1", "k2", "k3", "k4", "k5", "k6"}) ASSERT_TRUE(Unbind(name).ok());
  EXPECT_TRUE(directory_.catalog().PrepareDeleteArtifact("x", wall_now()).ok());
  EXPECT_TRUE(absl::IsNotFound(directory_.catalog().PrepareDeleteArtifact("nothing", wall_now()).status()));
}

TEST_F(Artifacts, ReboundKey_MovesToItsNewArtifact) {
  Publish("x");
  Publish("y");
  ASSERT_TRUE(Bind("k", "x").ok());
  ASSERT_TRUE(Bind("k", "y").ok());
  EXPECT_THAT(DescribeArtifact(directory_, "x")->keys, IsEmpty());
  EXPECT_THAT(DescribeArtifact(directory_, "y")->keys, ElementsAre("k"));
}

TEST_F(Artifacts, ListArtifacts_FiltersUnkeyedAndOldInPages) {
  for (const char* id : {"a", "b", "c", "d"}) {
    Publish(id);
    now_ += absl::Seconds(1);
  }
  ASSERT_TRUE(Bind("k", "b").ok());
  const auto ids = [&](std::string_view after, size_t limit, bool unkeyed, absl::Time before) {
    std::vector<std::string> all;
    const ArtifactFilter filter{.unkeyed_only = unkeyed, .created_before = before};
    for (const ArtifactView& view : ListArtifacts(directory_, after, {.entries = limit}, filter).artifacts) {
      all.push_back(view.record.artifact_id);
    }
    return all;
  };
  EXPECT_THAT(ids("", 10, false, wall_now()), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(ids("", 2, false, wall_now()), ElementsAre("a", "b"));
  EXPECT_THAT(ids("b", 2, false, wall_now()), ElementsAre("c", "d"));
  EXPECT_THAT(ids("", 10, true, wall_now()), ElementsAre("a", "c", "d"));
  EXPECT_THAT(ids("", 10, true, wall_now() - absl::Seconds(3)), ElementsAre("a"));
  EXPECT_THAT(ids("", 1, true, wall_now() - absl::Seconds(2)), ElementsAre("a"));
}

TEST_F(Artifacts, ListArtifacts_FindsArtifactByOriginPath) {
  Register("a");
  ASSERT_TRUE(PublishFrom({.node = Id("a"),
                           .artifact = {.artifact_id = "x"},
                           .replica = SomeReplica("r", "x"),
                           .origin = Origin{.node_id = "", .objects = {{"/one", 1, "2"}}}})
                  .ok());
  Publish("put");
  const auto ids = [&](std::string_view path) {
    std::vector<std::string> all;
    for (const ArtifactView& view : ListArtifacts(directory_, "", {}, {.origin_path = path}).artifacts) {
      all.push_back(view.record.artifact_id);
    }
    return all;
  };
  EXPECT_THAT(ids("/one"), ElementsAre("x"));
  EXPECT_THAT(ids("/on"), IsEmpty());
  EXPECT_THAT(ids(""), ElementsAre("put", "x"));
}

TEST_F(Artifacts, Apply_RestoresArtifactsAndKeysFromFacts) {
  const DurableFacts facts{
      .artifacts = {{.artifact_id = "x", .image_bytes = 7},
                    {.artifact_id = "gone", .deleted = true, .updated = wall_now()}},
      .keys = {
          {.name = "k", .artifact_id = "x", .revision = 4},
          {.name = "dead", .artifact_id = "gone", .revision = 2, .updated = wall_now(), .deleted = true}}};
  directory_.Apply(facts, now_);
  EXPECT_EQ(directory_.counts().artifacts, 1u);
  EXPECT_EQ(directory_.counts().keys, 1u);
  EXPECT_THAT(DescribeArtifact(directory_, "x")->keys, ElementsAre("k"));
  EXPECT_EQ(Bind("dead", "x")->revision, 3u);
}

TEST_F(Artifacts, PurgeTombstones_ForgetsOldDeletions) {
  directory_.Apply(
      {.artifacts = {{.artifact_id = "gone", .deleted = true, .updated = wall_now()}},
       .keys =
           {{.name = "dead", .artifact_id = "gone", .revision = 2, .updated = wall_now(), .deleted = true}}},
      now_);
  Publish("x");
  Register("a");
  Update("a", {SomeReplica("r", "gone")});
  directory_.catalog().Purge(wall_now(), wall_now());
  EXPECT_THAT(Beat("a").forgotten_artifacts, ElementsAre("gone"));
  directory_.catalog().Purge(wall_now() + absl::Seconds(1), wall_now());
  EXPECT_THAT(Beat("a").forgotten_artifacts, IsEmpty());
  EXPECT_EQ(Bind("dead", "x")->revision, 1u);
}

}  // namespace
}  // namespace tensorcast::global_store::facts_test
