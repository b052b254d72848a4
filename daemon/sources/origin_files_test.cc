#include "daemon/sources/origin_files.h"
#include "base/testing/temp_folder.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "core/disk/import_roots.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::origin_files_test {
namespace {

class OriginFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto roots = ImportRoots::Beneath({folder_.path()});
    ASSERT_TRUE(roots.ok()) << roots.status();
    store_ = std::make_shared<const ImportRoots>(*std::move(roots));
    path_ = folder_.path() + "/m.safetensors";
    ASSERT_TRUE(WriteSafetensors(path_, artifact_.layout, {}, artifact_.image).ok());
    auto found = store_->Find({}, path_);
    ASSERT_TRUE(found.ok()) << found.status();
    origin_.objects = {found->object->identity()};
    checker_.emplace(store_, is_immutable_);
  }

  const tensorcast::testing::TempFolder folder_;
  std::string path_;
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  std::shared_ptr<const ObjectStore> store_;
  Origin origin_;
  const OriginChecker::IsImmutable is_immutable_ = [](const ObjectIdentity& object) {
    return object.version == "version:1";
  };
  std::optional<OriginChecker> checker_;
};

// A store of shared objects that answers as a test says, and counts the questions.
class FakeObjects final : public ObjectStore {
 public:
  absl::Status answer = absl::UnavailableError("503");
  mutable int asked = 0;

  absl::StatusOr<FoundObject> Find(const RequestContext&, const std::string&) const override {
    return answer;
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext&,
                                                          const ObjectIdentity&) const override {
    ++asked;
    if (!answer.ok()) return answer;
    return std::shared_ptr<ObjectReader>();
  }
};

TEST_F(OriginFilesTest, SharedObjects_AreCountedOnlyInImmutableVersions) {
  const auto objects = std::make_shared<FakeObjects>();
  OriginChecker checker(objects, is_immutable_);
  const Origin named{.node_id = "me", .objects = {{"s3://b/o", 4, "version:1"}}};
  const Origin replaceable{.node_id = "me",
                           .objects = {{"s3://b/o", 4, "version:1"}, {"s3://b/p", 4, "etag:1"}}};
  auto finding = checker.Check({}, replaceable);
  ASSERT_TRUE(finding.ok()) << finding.status();
  EXPECT_TRUE(finding->is_mutable && !finding->intact);
  EXPECT_EQ(objects->asked, 0) << "whatever is there now, it may change";

  EXPECT_EQ(checker.Check({}, named).status().code(), absl::StatusCode::kFailedPrecondition)
      << "a store that does not answer says nothing of the object, nor of this node";
  objects->answer = absl::PermissionDeniedError("daemon.origins");
  EXPECT_FALSE(checker.Check({}, named).ok());
  objects->answer = absl::NotFoundError("no such version");
  finding = checker.Check({}, named);
  ASSERT_TRUE(finding.ok()) << finding.status();
  EXPECT_FALSE(finding->intact || finding->is_mutable);
  objects->answer = absl::OkStatus();
  objects->asked = 0;
  finding = checker.Check({}, named);
  ASSERT_TRUE(finding.ok()) << finding.status();
  EXPECT_TRUE(finding->intact);
  EXPECT_EQ(objects->asked, 1);
}

TEST_F(OriginFilesTest, UnchangedOriginFiles_AreIntact) {
  const auto finding = checker_->Check({}, origin_);
  ASSERT_TRUE(finding.ok()) << finding.status();
  EXPECT_TRUE(finding->intact) << finding->reason;
}

TEST_F(OriginFilesTest, GrownOrRemovedOriginFile_IsNotIntact) {
  std::ofstream(path_, std::ios::app) << "more";
  auto grown = checker_->Check({}, origin_);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_FALSE(grown->intact);
  EXPECT_NE(grown->reason, "");
  std::filesystem::remove(path_);
  auto gone = checker_->Check({}, origin_);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_FALSE(gone->intact);
}

TEST_F(OriginFilesTest, OriginOutsideRootsOrWithoutFiles_IsNotIntact) {
  auto outside = OriginChecker(std::make_shared<const ImportRoots>(), is_immutable_).Check({}, origin_);
  ASSERT_TRUE(outside.ok()) << outside.status();
  EXPECT_FALSE(outside->intact);
  auto empty = checker_->Check({}, Origin());
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_FALSE(empty->intact);
}

TEST_F(OriginFilesTest, OriginWithOtherTensors_IsDataLoss) {
  const testing::TestArtifact another = testing::MakeChunkedArtifact(1, 2);
  EXPECT_EQ(OpenOriginSource({}, *store_, origin_, *another.manifest).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(OriginFilesTest, FilesOrigin_GivesFilesByTheirPaths) {
  std::ofstream(folder_.path() + "/config.json") << "{}";
  std::filesystem::create_directory(folder_.path() + "/sub");
  std::ofstream(folder_.path() + "/sub/empty");
  const auto found = store_->Find({}, folder_.path());
  ASSERT_TRUE(found.ok()) << found.status();
  SafetensorsModel model;
  model.folder = found->folder;
  const auto files = OpenFilesBeside({}, model);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto manifest =
      Manifest::Create(files->layout, {{.xxh3 = {}, .blake3 = Blake3Digest()}}, {}, ArtifactKind::kFiles);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Origin origin;
  for (const auto& object : files->objects) origin.objects.push_back(object->identity());
  const auto finding = checker_->Check({}, origin);
  ASSERT_TRUE(finding.ok()) << finding.status();
  EXPECT_TRUE(finding->intact) << finding->reason;
  EXPECT_TRUE(OpenOriginSource({}, *store_, origin, **manifest).ok());
  ImageLayout longer = files->layout;
  longer.tensors[0].shape = {3};
  longer.tensors[0].nbytes = 3;
  ASSERT_TRUE(AssignOffsets(longer).ok());
  const auto other =
      Manifest::Create(longer, {{.xxh3 = {}, .blake3 = Blake3Digest()}}, {}, ArtifactKind::kFiles);
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Status changed = OpenOriginSource({}, *store_, origin, **other).status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(changed.message(), ::testing::HasSubstr("the files beside the tensors of the model changed"));
  std::ofstream(folder_.path() + "/config.json") << "{ }";
  EXPECT_EQ(OpenOriginSource({}, *store_, origin, **manifest).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tensorcast::daemon::origin_files_test
