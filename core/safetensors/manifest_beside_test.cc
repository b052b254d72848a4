#include "core/safetensors/manifest_beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/posix/state_files.h"
#include "base/testing/temp_folder.h"
#include "core/disk/import_roots.h"
#include "core/testing/test_artifact.h"

namespace tensorcast::manifest_beside_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A tensor and a chunk of each MiB.
testing::TestArtifact Artifact(size_t chunks) {
  return testing::MakeTestArtifact(1, std::vector<uint64_t>(chunks, kMinChunkBytes));
}

class ManifestBeside : public ::testing::Test {
 protected:
  SafetensorsModel Write(const testing::TestArtifact& artifact) {
    EXPECT_TRUE(WriteSafetensors(path_, artifact.layout, {}, artifact.image).ok());
    auto model = OpenSafetensors(path_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.value_or(SafetensorsModel());
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.path() + "/m.safetensors";
  const ImportRoots files_ = ImportRoots::Everything();
};

TEST_F(ManifestBeside, ManifestUri_IsBesideFileAndInFolder) {
  EXPECT_EQ(ManifestUriOf("s3://b/a/m.safetensors"), "s3://b/a/m.tcmanifest");
  EXPECT_EQ(ManifestUriOf("s3://b/a/"), "s3://b/a/model.tcmanifest");
  EXPECT_EQ(ManifestUriOf("/a"), "/a/model.tcmanifest");
}

TEST_F(ManifestBeside, MakeManifest_HasBothDigestsOfEachChunk) {
  const testing::TestArtifact artifact = Artifact(3);
  const auto made = MakeManifest({}, Write(artifact));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->digests(), artifact.manifest->digests());
}

TEST_F(ManifestBeside, FindManifestBeside_TakesOnlyOneOfTheseTensors) {
  const SafetensorsModel model = Write(Artifact(3));
  auto none = FindManifestBeside({}, files_, path_, model);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);

  const auto made = MakeManifest({}, model);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(ReplaceFile(ManifestUriOf(path_), (*made)->bytes()).ok());
  const auto found = FindManifestBeside({}, files_, path_, model);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_NE(*found, nullptr);
  EXPECT_EQ((*found)->id(), (*made)->id());
  EXPECT_TRUE(CheckManifestBeside(path_, **found, **made).ok());

  const SafetensorsModel other = Write(Artifact(4));
  EXPECT_THAT(FindManifestBeside({}, files_, path_, other).status().message(),
              AllOf(HasSubstr("m.tcmanifest"), HasSubstr("belongs to another model")));
  ASSERT_TRUE(ReplaceFile(ManifestUriOf(path_), "damaged").ok());
  EXPECT_EQ(FindManifestBeside({}, files_, path_, other).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ManifestBeside, UndecodableManifest_ErrorNamesTensorWithSemicolon) {
  testing::TestArtifact artifact = Artifact(2);
  artifact.layout.tensors[0].name = "a;b";
  artifact.layout.tensors[1].name = "a;c";
  const SafetensorsModel model = Write(artifact);
  const auto made = MakeManifest({}, model);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string twice = absl::StrReplaceAll((*made)->bytes(), {{"a;c", "a;b"}});
  ASSERT_TRUE(ReplaceFile(ManifestUriOf(path_), twice).ok());
  EXPECT_THAT(
      FindManifestBeside({}, files_, path_, model).status().message(),
      AllOf(HasSubstr("tensor \"a;b\": two tensors have this name"), HasSubstr("; remove this manifest")));
}

TEST_F(ManifestBeside, OtherBytes_AreRefusedByChunk) {
  const testing::TestArtifact one = Artifact(3);
  testing::TestArtifact two = one;
  const Tensor& last = two.layout.tensors.back();
  two.image[last.offset + last.nbytes - 1] ^= std::byte{1};
  const auto before = MakeManifest({}, Write(one));
  const auto after = MakeManifest({}, Write(two));
  ASSERT_TRUE(before.ok() && after.ok());
  const absl::Status refused = CheckManifestBeside(path_, **before, **after);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("m.tcmanifest"), HasSubstr("chunk 2")));
}

}  // namespace
}  // namespace tensorcast::manifest_beside_test
