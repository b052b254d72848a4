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

class BoundFilesTest : public CatalogTest {
 protected:
  void SetUp() override {
    for (const char* const id : {"f1", "f2"}) {
      ArtifactRecord files;
      files.artifact_id = id;
      files.kind = ArtifactKind::kFiles;
      Apply(catalog_.PreparePublish(files, std::nullopt, kNow)->facts);
    }
  }
  static ArtifactRecord Tensors(const std::string& id, const std::string& digest) {
    ArtifactRecord record;
    record.artifact_id = id;
    record.tensors_digest = digest;
    return record;
  }
  // The files that the key then has.
  std::string Put(const ArtifactRecord& tensors, const std::string& files_id = "") {
    const BindRequest bind{
        .key = "k", .artifact_id = tensors.artifact_id, .expected = {}, .keep = 2, .files_id = files_id};
    const auto plan = catalog_.PreparePublish(tensors, bind, kNow);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) Apply(plan->facts);
    return catalog_.ResolveKey("k")->files_id;
  }
};

TEST_F(BoundFilesTest, PutWithoutFiles_InheritsThoseOfSameModel) {
  EXPECT_EQ(Put(Tensors("step1", "llama"), "f1"), "f1");
  EXPECT_EQ(Put(Tensors("step2", "llama")), "f1");
  EXPECT_EQ(Put(Tensors("step2", "llama")), "f1");  // the same put again
  EXPECT_EQ(Put(Tensors("step3", "llama"), "f2"), "f2");
  EXPECT_EQ(Put(Tensors("step2", "llama")), "f1");  // back, with the files that it had
  EXPECT_EQ(Put(Tensors("other", "qwen")), "");
}

TEST_F(BoundFilesTest, UnknownDigests_DoNotInherit) {
  EXPECT_EQ(Put(Tensors("a", ""), "f1"), "f1");
  EXPECT_EQ(Put(Tensors("b", "")), "");
}

TEST_F(BoundFilesTest, Files_AreHeldByBindingAndKeptByVersion) {
  EXPECT_THAT(catalog_.released(), ElementsAre("f1", "f2"));  // until a key names them
  Put(Tensors("step1", "llama"), "f1");
  EXPECT_THAT(catalog_.released(), ElementsAre("f2"));
  EXPECT_EQ(catalog_.PrepareDeleteArtifact("f1", kNow).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Put(Tensors("step2", "llama"), "f2");
  EXPECT_THAT(catalog_.Find("f1")->kept_by, ElementsAre("k"));
  EXPECT_THAT(catalog_.released(), IsEmpty());
  Put(Tensors("step3", "llama"));  // two versions are kept
  EXPECT_THAT(catalog_.released(), ElementsAre("f1", "step1"));
  EXPECT_THAT(catalog_.Find("f2")->keys, ElementsAre("k"));
  EXPECT_THAT(catalog_.Find("f2")->kept_by, IsEmpty());
  EXPECT_THAT(catalog_.FilesBoundWith("step3"), ElementsAre("f2"));
  EXPECT_THAT(catalog_.FilesBoundWith("step2"), IsEmpty());
  Apply(catalog_.PrepareDeleteKey("k", std::nullopt, kNow)->facts);
  EXPECT_TRUE(catalog_.IsDeleted("f2"));
  EXPECT_FALSE(catalog_.IsDeleted("f1"));  // the key had it no more
}

TEST_F(BoundFilesTest, FilesOfTwoKeys_StayWhenOneIsDeleted) {
  Put(Tensors("step1", "llama"), "f1");
  Apply(catalog_
            .PrepareBindKey(
                {.key = "other", .artifact_id = "step1", .expected = {}, .keep = {}, .files_id = "f1"}, kNow)
            ->facts);
  Apply(catalog_.PrepareDeleteKey("k", std::nullopt, kNow)->facts);
  EXPECT_EQ(catalog_.ResolveKey("other")->files_id, "f1");
  EXPECT_FALSE(catalog_.IsReleased("f1"));
  Apply(catalog_.PrepareDeleteKey("other", std::nullopt, kNow)->facts);
  EXPECT_TRUE(catalog_.IsDeleted("f1"));
}

TEST_F(BoundFilesTest, DeletedFilesOfEarlierVersion_LeaveItWithout) {
  Put(Tensors("step1", "llama"), "f1");
  Put(Tensors("step2", "llama"), "f2");
  Apply(*catalog_.PrepareDeleteArtifact("f1", kNow));
  const auto key = catalog_.ResolveKey("k");
  ASSERT_EQ(key->earlier.size(), 1u);
  EXPECT_EQ(key->earlier[0].files_id, "");
  EXPECT_EQ(key->files_id, "f2");
}

TEST_F(BoundFilesTest, WrongKindOrMissingFiles_AreRefused) {
  Publish("x");
  const auto bind = [&](const std::string& artifact, const std::string& files_id) {
    return catalog_
        .PrepareBindKey(
            {.key = "k", .artifact_id = artifact, .expected = {}, .keep = {}, .files_id = files_id}, kNow)
        .status()
        .code();
  };
  EXPECT_EQ(bind("f1", ""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bind("x", "x"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bind("x", "none"), absl::StatusCode::kNotFound);
  EXPECT_EQ(bind("x", "f1"), absl::StatusCode::kOk);
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
