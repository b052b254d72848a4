#include "global_store/metadata/testing/metadata_store_contract.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {

void MetadataStoreContract::SetUp() {
  folder_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("metadata-", getpid());
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  store_ = GetParam()(folder_);
  ASSERT_NE(store_, nullptr);
}

void MetadataStoreContract::TearDown() {
  store_.reset();
  std::filesystem::remove_all(folder_);
}

DurableFacts MetadataStoreContract::Load() {
  auto facts = store_->Load();
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts.value_or(DurableFacts{});
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

ArtifactRecord Artifact(const std::string& id) {
  return {.artifact_id = id,
          .image_bytes = uint64_t{1} << 40,
          .chunk_bytes = 16 << 20,
          .tensor_count = 3,
          .created = kNow,
          .origins = {{.node_id = "n1",
                       .objects = {{"/m/a", ~uint64_t{0}, "8:9:5:-7"}, {"/m/b", 11, "8:10:5:7"}},
                       .compared = true},
                      {.node_id = "n2", .objects = {{"/x", 1, "2"}}, .untraceable = true}},
          .updated = kNow};
}

KeyRecord Key(const std::string& name, uint64_t revision) {
  return {.name = name, .artifact_id = "a", .revision = revision, .updated = kNow};
}

WriteBatch Facts(std::vector<ArtifactRecord> artifacts, std::vector<KeyRecord> keys = {}) {
  return {.facts = {.artifacts = std::move(artifacts), .keys = std::move(keys)}};
}

TEST_P(MetadataStoreContract, NewMetadataStore_IsEmpty) {
  EXPECT_TRUE(Load().empty());
  EXPECT_EQ(store_->ReadManifest("a").status().code(), absl::StatusCode::kNotFound);
  auto response = store_->FindResponse("r");
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->has_value());
}

TEST_P(MetadataStoreContract, Load_ReturnsCommittedFacts) {
  ASSERT_TRUE(store_->Commit(Facts({Artifact("a"), Artifact("b")}, {Key("k", 1)})).ok());
  const DurableFacts facts = Load();
  EXPECT_THAT(facts.artifacts, ElementsAre(Artifact("a"), Artifact("b")));
  EXPECT_THAT(facts.keys, ElementsAre(Key("k", 1)));
}

TEST_P(MetadataStoreContract, LaterRecord_ReplacesPreviousOne) {
  ArtifactRecord moved = Artifact("a");
  moved.origins = {{.node_id = "n2", .objects = {{"/y", 1, "2"}}}};
  ASSERT_TRUE(store_->Commit(Facts({Artifact("a")}, {Key("k", 1)})).ok());
  ASSERT_TRUE(store_->Commit(Facts({moved}, {Key("k", 2)})).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(moved));
  EXPECT_THAT(Load().keys, ElementsAre(Key("k", 2)));
}

TEST_P(MetadataStoreContract, FilesOfKeyAndVersions_AreKept) {
  ArtifactRecord files = Artifact("f");
  files.kind = ArtifactKind::kFiles;
  files.tensors_digest = std::string("\0\xff", 2);
  KeyRecord key = Key("k", 2);
  key.files_id = "f";
  key.earlier = {{.artifact_id = "b", .revision = 1, .bound = kNow, .files_id = "g"}};
  ASSERT_TRUE(store_->Commit(Facts({files}, {key})).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(files));
  EXPECT_THAT(Load().keys, ElementsAre(key));
}

TEST_P(MetadataStoreContract, DifferenceAndVersionsItIsBetween_AreKept) {
  ArtifactRecord difference = Artifact("d");
  difference.kind = ArtifactKind::kDifference;
  difference.base_id = "b";
  difference.target_id = "a";
  KeyRecord key = Key("k", 3);
  key.past = {"b", "c"};
  WriteBatch batch = Facts({Artifact("a"), difference}, {key});
  batch.manifests = {ManifestBlob{.artifact_id = "a", .bytes = "of a"},
                     ManifestBlob{.artifact_id = "d", .bytes = "of d"}};
  ASSERT_TRUE(store_->Commit(batch).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(Artifact("a"), difference));
  EXPECT_THAT(Load().keys, ElementsAre(key));
  EXPECT_EQ(store_->ReadManifest("a").value_or("none"), "of a");
  EXPECT_EQ(store_->ReadManifest("d").value_or("none"), "of d");
}

TEST_P(MetadataStoreContract, EarlierVersions_AreReplacedWithTheirKey) {
  KeyRecord key = Key("k", 9);
  key.keep = 3;
  key.earlier = {{.artifact_id = "b", .revision = 8, .bound = kNow},
                 {.artifact_id = "c", .revision = 5, .bound = kNow - absl::Seconds(1)}};
  KeyRecord other = Key("l", 2);
  other.earlier = {{.artifact_id = "b", .revision = 1, .bound = kNow}};
  ASSERT_TRUE(store_->Commit(Facts({}, {key, Key("j", 1), other})).ok());
  EXPECT_THAT(Load().keys, ElementsAre(Key("j", 1), key, other));
  key.revision = 10;
  key.earlier = {{.artifact_id = "a", .revision = 9, .bound = kNow},
                 {.artifact_id = "b", .revision = 8, .bound = kNow}};
  other.earlier.clear();
  ASSERT_TRUE(store_->Commit(Facts({}, {key, other})).ok());
  EXPECT_THAT(Load().keys, ElementsAre(Key("j", 1), key, other));
}

TEST_P(MetadataStoreContract, TombstonesOfVersions_ArePurgedByTheirOwnTime) {
  const ArtifactRecord deleted{.artifact_id = "d", .created = kNow, .deleted = true, .updated = kNow};
  ArtifactRecord version = deleted;
  version.artifact_id = "v";
  version.versioned = true;
  ArtifactRecord live = Artifact("a");
  live.versioned = true;
  ASSERT_TRUE(store_->Commit(Facts({live, deleted, version})).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(live, deleted, version));
  ASSERT_TRUE(store_->Purge({.tombstones = kNow, .versions = kNow + absl::Seconds(1)}).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(live, deleted));
}

TEST_P(MetadataStoreContract, BoundNodeId_IsKeptUntilItIsUnbound) {
  ASSERT_TRUE(store_->Commit({.facts = {.nodes = {{"n1", "a"}, {"n2", "b"}}}}).ok());
  EXPECT_THAT(Load().nodes, ElementsAre(NodeBinding{"n1", "a"}, NodeBinding{"n2", "b"}));
  ASSERT_TRUE(store_->Commit({.facts = {.nodes = {{"n1", ""}, {"n2", "c"}, {"n3", ""}}}}).ok());
  EXPECT_THAT(Load().nodes, ElementsAre(NodeBinding{"n2", "c"}));
}

TaskRecord MakeTask(const std::string& artifact_id, const std::string& node_id, Location location = {}) {
  return {.task_id = "w-" + node_id,
          .artifact_id = artifact_id,
          .node_id = node_id,
          .location = location,
          .node_name = "name",
          .asked_by = "spiffe://d/tensorcast/operator/o",
          .traceparent = "00-1-2-01",
          .state = TaskState::kFailed,
          .failures = 3,
          .error = absl::UnavailableError("no node has it"),
          .created = kNow,
          .updated = kNow + absl::Seconds(1)};
}

TEST_P(MetadataStoreContract, ClusterId_IsKept) {
  EXPECT_EQ(Load().cluster_id, "");
  ASSERT_TRUE(store_->Commit({.facts = {.cluster_id = "an-id"}}).ok());
  ASSERT_TRUE(store_->Commit({.facts = {.nodes = {{"n1", "a"}}}}).ok());
  EXPECT_EQ(Load().cluster_id, "an-id");
}

// A key and a node id may have the characters that separate the parts of a fact's name.
TEST_P(MetadataStoreContract, Follower_IsKeptUntilItIsRemoved) {
  FollowerRecord on_gpu{.key = "a/b",
                        .node_id = "n/1",
                        .location = {LocationKind::kGpu, 3},
                        .node_name = "n",
                        .asked_by = "an operator",
                        .created = kNow};
  FollowerRecord other = on_gpu;
  other.location = {};
  ASSERT_TRUE(store_->Commit({.facts = {.followers = {on_gpu, other}}}).ok());
  EXPECT_THAT(Load().followers, ::testing::UnorderedElementsAre(on_gpu, other));
  other.removed = true;
  ASSERT_TRUE(store_->Commit({.facts = {.followers = {other}}}).ok());
  EXPECT_THAT(Load().followers, ElementsAre(on_gpu));
  ASSERT_TRUE(store_->Purge({.tombstones = kNow + absl::Hours(1)}).ok());
  EXPECT_THAT(Load().followers, ElementsAre(on_gpu)) << "it does not age";
}

TEST_P(MetadataStoreContract, Announcement_IsKeptUntilItIsOld) {
  AnnouncementRecord announced{.key = "a/b",
                               .group = "g",
                               .revision = 7,
                               .artifact_id = "x",
                               .members = {"one", "two"},
                               .updated = kNow};
  ASSERT_TRUE(store_->Commit({.facts = {.announcements = {announced}}}).ok());
  announced.revision = 8;
  ASSERT_TRUE(store_->Commit({.facts = {.announcements = {announced}}}).ok());
  EXPECT_THAT(Load().announcements, ElementsAre(announced));
  ASSERT_TRUE(store_->Purge({.tombstones = kNow + absl::Seconds(1)}).ok());
  EXPECT_THAT(Load().announcements, IsEmpty());
}

TEST_P(MetadataStoreContract, Task_IsKeptUntilCancelledOrItsArtifactIsDeleted) {
  TaskRecord on_disk = MakeTask("a", "n1", {LocationKind::kDisk});
  const TaskRecord on_gpu = MakeTask("a", "n1", {LocationKind::kGpu, 1});
  const TaskRecord other = MakeTask("b", "n1");
  ASSERT_TRUE(store_->Commit({.facts = {.tasks = {on_disk, on_gpu, other}}}).ok());
  EXPECT_THAT(Load().tasks, ::testing::UnorderedElementsAre(on_disk, on_gpu, other));
  on_disk.task_id = "another";
  on_disk.state = TaskState::kOpen;
  on_disk.error = absl::OkStatus();
  ASSERT_TRUE(store_->Commit({.facts = {.tasks = {on_disk}}}).ok());
  EXPECT_THAT(Load().tasks, ::testing::UnorderedElementsAre(on_disk, on_gpu, other));
  // Only what ended grows old.
  ASSERT_TRUE(store_->Purge({.tasks = kNow + absl::Seconds(1)}).ok());
  EXPECT_THAT(Load().tasks, ::testing::UnorderedElementsAre(on_disk, on_gpu, other));
  ASSERT_TRUE(store_->Purge({.tasks = kNow + absl::Seconds(2)}).ok());
  EXPECT_THAT(Load().tasks, ElementsAre(on_disk));
  TaskRecord cancelled = on_disk;
  cancelled.cancelled = true;
  ASSERT_TRUE(store_->Commit({.facts = {.tasks = {cancelled, other, on_gpu}}}).ok());
  EXPECT_THAT(Load().tasks, ::testing::UnorderedElementsAre(on_gpu, other));
  ArtifactRecord deleted{.artifact_id = "a", .deleted = true, .updated = kNow};
  ASSERT_TRUE(store_->Commit(Facts({deleted})).ok());
  EXPECT_THAT(Load().tasks, ElementsAre(other));
}

TEST_P(MetadataStoreContract, ReplacedArtifactRecord_KeepsItsManifest) {
  WriteBatch batch = Facts({Artifact("a")});
  batch.manifests = {ManifestBlob{.artifact_id = "a", .bytes = "bytes"}};
  ASSERT_TRUE(store_->Commit(batch).ok());
  ASSERT_TRUE(store_->Commit(Facts({Artifact("a")})).ok());
  EXPECT_EQ(store_->ReadManifest("a").value_or("none"), "bytes");
}

TEST_P(MetadataStoreContract, Manifest_MayHaveManyPieces) {
  std::string large(64 << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 4093) large[i] = static_cast<char>(i);
  for (const std::string& bytes :
       {large, large.substr(0, 32 << 20), large.substr(0, (16 << 20) + 1), std::string()}) {
    WriteBatch batch = Facts({Artifact("a")});
    batch.manifests = {ManifestBlob{.artifact_id = "a", .bytes = bytes}};
    ASSERT_TRUE(store_->Commit(batch).ok());
    auto read = store_->ReadManifest("a");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == bytes) << bytes.size();
  }
}

TEST_P(MetadataStoreContract, Tombstone_RemovesManifestAndOrigins) {
  WriteBatch batch = Facts({Artifact("a")});
  batch.manifests = {ManifestBlob{.artifact_id = "a", .bytes = "bytes"}};
  ASSERT_TRUE(store_->Commit(batch).ok());
  const ArtifactRecord tombstone{.artifact_id = "a", .created = kNow, .deleted = true, .updated = kNow};
  ASSERT_TRUE(store_->Commit(Facts({tombstone})).ok());
  EXPECT_THAT(Load().artifacts, ElementsAre(tombstone));
  EXPECT_EQ(store_->ReadManifest("a").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(MetadataStoreContract, FindResponse_ReturnsRecordedBytes) {
  const std::string response("a\0b\xff", 4);
  ASSERT_TRUE(store_->Commit({.request = RequestRecord{"r1", response, kNow}}).ok());
  ASSERT_TRUE(store_->Commit({.request = RequestRecord{"r2", "", kNow}}).ok());
  EXPECT_EQ(store_->FindResponse("r1").value(), response);
  EXPECT_EQ(store_->FindResponse("r2").value(), "");
  EXPECT_EQ(store_->FindResponse("r3").value(), std::nullopt);
}

TEST_P(MetadataStoreContract, Purge_DropsOnlyOldRequestsAndTombstones) {
  KeyRecord dead = Key("dead", 4);
  dead.deleted = true;
  KeyRecord fresh = dead;
  fresh.name = "fresh";
  fresh.updated = kNow + absl::Seconds(2);
  const ArtifactRecord tombstone{.artifact_id = "t", .created = kNow, .deleted = true, .updated = kNow};
  ASSERT_TRUE(store_->Commit(Facts({Artifact("a"), tombstone}, {Key("live", 1), dead, fresh})).ok());
  ASSERT_TRUE(store_->Commit({.request = RequestRecord{"old", "x", kNow}}).ok());
  ASSERT_TRUE(store_->Commit({.request = RequestRecord{"new", "y", kNow + absl::Seconds(2)}}).ok());

  ASSERT_TRUE(store_
                  ->Purge({.requests = kNow + absl::Seconds(1),
                           .tombstones = kNow + absl::Seconds(1),
                           .tasks = kNow + absl::Seconds(1)})
                  .ok());
  EXPECT_EQ(store_->FindResponse("old").value(), std::nullopt);
  EXPECT_EQ(store_->FindResponse("new").value(), "y");
  EXPECT_THAT(Load().artifacts, ElementsAre(Artifact("a")));
  EXPECT_THAT(Load().keys, ElementsAre(fresh, Key("live", 1)));
}

TEST_P(MetadataStoreContract, NameWithSqlSyntax_IsStored) {
  const std::string name = "it's; DROP TABLE keys; --\xc3\xa9";
  ASSERT_TRUE(store_->Commit(Facts({}, {Key(name, 1)})).ok());
  EXPECT_THAT(Load().keys, ElementsAre(Key(name, 1)));
}

TEST_P(MetadataStoreContract, ConcurrentCommits_AreAllKept) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = absl::StrCat(t, "-", i);
        WriteBatch batch = Facts({}, {Key(name, 1)});
        batch.request = RequestRecord{name, name, kNow};
        EXPECT_TRUE(store_->Commit(batch).ok());
        EXPECT_EQ(store_->FindResponse(name).value(), name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Load().keys, SizeIs(80));
}

TEST_P(MetadataStoreContract, ConcurrentCommitsAndUnbinds_AreAllKept) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = absl::StrCat(t, "-", i);
        WriteBatch batch = Facts({}, {Key(name, 1)});
        batch.facts.nodes = {{name, "node"}, {absl::StrCat(t, "-", i - 1), ""}};
        EXPECT_TRUE(store_->Commit(batch).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Load().keys, SizeIs(160));
  EXPECT_THAT(Load().nodes, SizeIs(8)) << "the last of each";
}

}  // namespace
}  // namespace tensorcast::global_store
