#include "core/ingest/chunk_verifier.h"

#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::chunk_verifier_test {
namespace {

using ::testing::HasSubstr;

class ChunkVerifierTest : public ::testing::Test {
 protected:
  ChunkRequest Request(uint32_t chunk, bool blake3) {
    const ByteRange range = artifact_.layout.chunk(chunk);
    bytes_ = HostSpan(artifact_.image).subspan(range.offset, range.bytes);
    return {.chunk = chunk, .range = range, .destination = {&bytes_, 1}, .blake3 = blake3};
  }
  ChunkVerifier::Verdict Verify(ChunkVerifier& verifier, const ChunkRequest& request,
                                std::optional<ChunkDigests> delivered = std::nullopt) {
    const ConstHostSpan bytes = bytes_;
    return verifier.Verify(request, {&bytes, 1}, delivered);
  }
  const ChunkDigests& Expected(uint32_t chunk) { return artifact_.manifest->digests()[chunk]; }

  testing::TestArtifact artifact_ = testing::MakeTestArtifact(1, {uint64_t{5} << 20, 100});
  HostSpan bytes_;
};

TEST_F(ChunkVerifierTest, Verify_ReadsBytesOnlyWithoutDigestsOfSource) {
  ChunkVerifier verifier(&artifact_.layout, artifact_.manifest.get(), /*distrust_other_hosts=*/true);
  const ChunkRequest request = Request(1, /*blake3=*/true);
  const uint64_t bytes = request.range.bytes;
  EXPECT_EQ(Verify(verifier, request).bytes_read, bytes);
  EXPECT_EQ(Verify(verifier, request, Expected(1)).bytes_read, 0u);
  ChunkDigests without_blake3 = Expected(1);
  without_blake3.blake3.reset();
  EXPECT_EQ(Verify(verifier, request, without_blake3).bytes_read, bytes);
}

TEST_F(ChunkVerifierTest, Verify_ErrorTellsForgedFromWrongDigest) {
  ChunkVerifier verifier(&artifact_.layout, artifact_.manifest.get(), /*distrust_other_hosts=*/true);
  EXPECT_EQ(Verify(verifier, Request(0, /*blake3=*/true)).wrong, "");
  ChunkDigests forged = Expected(0);
  forged.blake3 = Expected(1).blake3;
  EXPECT_THAT(Verify(verifier, Request(0, /*blake3=*/true), forged).wrong, HasSubstr("is forged"));
  artifact_.image[3] ^= std::byte{1};
  EXPECT_THAT(Verify(verifier, Request(0, /*blake3=*/false)).wrong,
              HasSubstr("but the manifest says " + Expected(0).xxh3.ToHex()));
}

TEST_F(ChunkVerifierTest, Blake3_IsWantedOnlyFromDistrustedRemoteSources) {
  const auto wants = [this](bool distrust, const SourceInfo& source) {
    return ChunkVerifier(&artifact_.layout, artifact_.manifest.get(), distrust).WantsBlake3(source, 0);
  };
  EXPECT_TRUE(wants(true, {.type = SourceType::kRemote}));
  EXPECT_TRUE(wants(true, {.type = SourceType::kDisk, .outside = true})) << "an object store";
  EXPECT_FALSE(wants(true, {.type = SourceType::kDisk}));
  EXPECT_FALSE(wants(true, {.type = SourceType::kLocal}));
  EXPECT_FALSE(wants(false, {.type = SourceType::kRemote}));
}

TEST_F(ChunkVerifierTest, FirstIngest_ReturnsDigestsAndChecksPadding) {
  ChunkVerifier verifier(&artifact_.layout, /*expected=*/nullptr, /*distrust_other_hosts=*/false);
  EXPECT_TRUE(verifier.WantsBlake3({.type = SourceType::kDisk}, 0));
  for (uint32_t chunk = 0; chunk < artifact_.layout.chunk_count(); ++chunk) {
    const ChunkRequest request = Request(chunk, /*blake3=*/true);
    EXPECT_TRUE(verifier.CheckPadding(request).ok());
    EXPECT_EQ(Verify(verifier, request).wrong, "");
  }
  EXPECT_EQ(verifier.TakeDigests(), artifact_.manifest->digests());
  const ByteRange padding = PaddingIn(artifact_.layout, {0, artifact_.layout.image_bytes}).front();
  artifact_.image[padding.offset] = std::byte{1};
  EXPECT_TRUE(absl::IsInvalidArgument(
      verifier.CheckPadding(Request(artifact_.layout.chunk_count() - 1, /*blake3=*/true))));
}

}  // namespace
}  // namespace tensorcast::chunk_verifier_test
