#include "global_store/metadata/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::global_store::copy_test {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixNanos(1'700'000'000'123'456'789);

ArtifactRecord Artifact(const std::string& id) {
  return {.artifact_id = id,
          .image_bytes = 1 << 20,
          .chunk_bytes = 1 << 16,
          .tensor_count = 2,
          .created = kNow,
          .origins = {{.node_id = "n1", .objects = {{"/m/a", 10, "8:7:5:6"}}, .compared = true}},
          .updated = kNow};
}

// Something of everything, more than one transaction of each.
void Fill(MetadataStore& store) {
  for (int i = 0; i < 40; ++i) {
    const std::string id = absl::StrCat("a", i);
    const std::string manifest(100 + i, 'm');
    WriteBatch batch{
        .facts =
            {.artifacts = {Artifact(id)},
             .keys = {{.name = absl::StrCat("key/", i),
                       .artifact_id = id,
                       .revision = 7,
                       .updated = kNow,
                       .keep = 3,
                       .earlier = {{.artifact_id = absl::StrCat("a", i + 1), .revision = 6, .bound = kNow}}}},
             .nodes = {{.node_id = absl::StrCat("n", i), .name = "node"}}},
        .manifests = {ManifestBlob{.artifact_id = id, .bytes = manifest}}};
    if (i % 2 == 0) {
      batch.facts.tasks = {{.task_id = absl::StrCat("w", i),
                            .artifact_id = id,
                            .node_id = "n1",
                            .state = TaskState::kFailed,
                            .failures = 3,
                            .error = absl::NotFoundError("gone"),
                            .created = kNow,
                            .updated = kNow}};
    }
    ASSERT_TRUE(store.Commit(batch).ok());
  }
  ArtifactRecord deleted = {.artifact_id = "a0", .deleted = true, .updated = kNow};
  ASSERT_TRUE(store
                  .Commit({.facts = {.artifacts = {deleted},
                                     .keys = {{.name = "key/0",
                                               .artifact_id = "a0",
                                               .revision = 8,
                                               .updated = kNow,
                                               .deleted = true}}}})
                  .ok());
}

class Copy : public ::testing::Test {
 protected:
  std::unique_ptr<MetadataStore> Sqlite(const std::string& name) {
    auto store = OpenSqliteStore({.path = folder_.File(name)});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  tensorcast::testing::TempFolder folder_;
  std::unique_ptr<MetadataStore> from_ = MakeMemoryStore();
};

TEST_F(Copy, CopyMetadata_CopiesAllFactsBothWays) {
  Fill(*from_);
  const auto there = Sqlite("there");
  auto copied = CopyMetadata(*from_, *there);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->artifacts, 40);
  EXPECT_EQ(copied->keys, 40);
  EXPECT_EQ(copied->nodes, 40);
  EXPECT_EQ(copied->tasks, 19) << "the deleted artifact's is gone with it";
  EXPECT_EQ(copied->written, 40 + 40 + 40 + 19);
  const auto back = MakeMemoryStore();
  ASSERT_TRUE(CopyMetadata(*there, *back).ok());
  // A second time there is nothing to do: both hold the same.
  for (const auto& [a, b] : {std::pair{from_.get(), back.get()}, {back.get(), from_.get()}}) {
    copied = CopyMetadata(*a, *b);
    ASSERT_TRUE(copied.ok()) << copied.status();
    EXPECT_EQ(copied->written, 0);
  }
  EXPECT_EQ(*back->ReadManifest("a39"), std::string(139, 'm'));
}

TEST_F(Copy, CopyMetadata_ContinuesInterruptedCopy) {
  Fill(*from_);
  const auto to = MakeMemoryStore();
  const std::string manifest(101, 'm');
  ASSERT_TRUE(to->Commit({.facts = {.artifacts = {Artifact("a1")}},
                          .manifests = {ManifestBlob{.artifact_id = "a1", .bytes = manifest}}})
                  .ok());
  const auto copied = CopyMetadata(*from_, *to);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->written, 40 + 40 + 40 + 19 - 1);
}

TEST_F(Copy, CopyMetadata_RefusesTargetWithOtherFacts) {
  Fill(*from_);
  for (const KeyRecord& other :
       {KeyRecord{.name = "key/1", .artifact_id = "a1", .revision = 9, .updated = kNow},
        KeyRecord{.name = "other", .artifact_id = "a1", .revision = 1, .updated = kNow}}) {
    const auto to = MakeMemoryStore();
    ASSERT_TRUE(to->Commit({.facts = {.keys = {other}}}).ok());
    const auto copied = CopyMetadata(*from_, *to);
    EXPECT_TRUE(absl::IsFailedPrecondition(copied.status())) << copied.status();
    EXPECT_THAT(copied.status().message(), HasSubstr(absl::StrCat("key ", other.name)));
    EXPECT_TRUE(to->Load()->artifacts.empty());
  }
}

TEST_F(Copy, CopyMetadata_RefusesDifferentManifest) {
  Fill(*from_);
  const auto to = MakeMemoryStore();
  ASSERT_TRUE(to->Commit({.facts = {.artifacts = {Artifact("a1")}},
                          .manifests = {ManifestBlob{.artifact_id = "a1", .bytes = "another"}}})
                  .ok());
  const auto copied = CopyMetadata(*from_, *to);
  EXPECT_TRUE(absl::IsDataLoss(copied.status())) << copied.status();
  EXPECT_THAT(copied.status().message(), HasSubstr("manifest of a1"));
}

}  // namespace
}  // namespace tensorcast::global_store::copy_test
