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
    checker_.emplace(store_);
  }

  const tensorcast::testing::TempFolder folder_;
  std::string path_;
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  std::shared_ptr<const ObjectStore> store_;
  Origin origin_;
  std::optional<OriginChecker> checker_;
};

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
  auto outside = OriginChecker(std::make_shared<const ImportRoots>()).Check({}, origin_);
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
  std::ofstream(folder_.path() + "/config.json") << "{ }";
  EXPECT_EQ(OpenOriginSource({}, *store_, origin, **manifest).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tensorcast::daemon::origin_files_test
