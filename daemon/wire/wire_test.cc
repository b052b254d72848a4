#include "daemon/wire/wire.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

TEST(Wire, AnUnsetLocationIsTheHostPool) {
  absl::StatusOr<Location> location = GetLocation(v1::Location(), nullptr);
  ASSERT_TRUE(location.ok());
  EXPECT_EQ(location->ToString(), "cpu");
}

TEST(Wire, ADeviceThatTheNodeDoesNotHaveIsRefused) {
  std::unique_ptr<DeviceRuntime> no_devices = CreateNullRuntime();
  v1::Location location;
  location.set_kind(v1::LOCATION_KIND_GPU);
  EXPECT_EQ(GetLocation(location, no_devices.get()).status().code(), absl::StatusCode::kInvalidArgument);
  location.set_device(-1);
  EXPECT_EQ(GetLocation(location, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Wire, ALocationKindOfALaterVersionIsRefused) {
  v1::Location location;
  location.set_kind(static_cast<v1::LocationKind>(17));
  EXPECT_EQ(GetLocation(location, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Wire, TimesBeforeTheEpochKeepTheirNanosecondsPositive) {
  google::protobuf::Timestamp out;
  SetTimestamp(absl::UnixEpoch() - absl::Milliseconds(1), &out);
  EXPECT_EQ(out.seconds(), -1);
  EXPECT_EQ(out.nanos(), 999'000'000);
}

TEST(Wire, AnEndlessDurationIsSentAsALongOne) {
  google::protobuf::Duration out;
  SetDuration(absl::InfiniteDuration(), &out);
  EXPECT_GT(GetDuration(out), absl::Hours(24 * 365));
  out.set_seconds(-5);
  EXPECT_EQ(GetDuration(out), absl::ZeroDuration());
}

TEST(Wire, PiecesJoinToTheWholeAndAnEmptyManifestIsOneEmptyPiece) {
  const std::string bytes(kManifestPieceBytes * 2 + 7, 'x');
  std::vector<size_t> sizes;
  EXPECT_TRUE(SendPieces(bytes, [&](std::string_view piece) { return sizes.push_back(piece.size()), true; }));
  EXPECT_THAT(sizes, testing::ElementsAre(kManifestPieceBytes, kManifestPieceBytes, 7));
  sizes.clear();
  EXPECT_TRUE(SendPieces("", [&](std::string_view piece) { return sizes.push_back(piece.size()), true; }));
  EXPECT_THAT(sizes, testing::ElementsAre(0));
  EXPECT_FALSE(SendPieces(bytes, [](std::string_view) { return false; }));
}

TEST(Wire, AManifestWithAnotherIdThanTheOneAskedForIsDataLoss) {
  ImageLayout layout;
  layout.tensors.push_back({.name = "w", .dtype = DType::kU8, .shape = {3}});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, std::vector<Digest>(layout.chunk_count()), {});
  ASSERT_TRUE(manifest.ok());
  EXPECT_TRUE(DecodeManifest((*manifest)->bytes(), (*manifest)->id()).ok());
  EXPECT_EQ(DecodeManifest((*manifest)->bytes(), ArtifactId("another")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeManifest("rubbish", (*manifest)->id()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tensorcast::daemon
