#include "daemon/node/node_messages.h"

#include <string>
#include <vector>

#include "core/artifact/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::node_messages_test {
namespace {

TEST(NodeMessages, UnsetLocation_IsHostMemory) {
  absl::StatusOr<Location> location = FromProto(v1::Location(), nullptr);
  ASSERT_TRUE(location.ok());
  EXPECT_EQ(location->ToString(), "cpu");
}

TEST(NodeMessages, UnknownDevice_IsRefused) {
  std::unique_ptr<DeviceRuntime> no_devices = CreateNullRuntime();
  v1::Location location;
  location.set_kind(v1::LOCATION_KIND_GPU);
  EXPECT_EQ(FromProto(location, no_devices.get()).status().code(), absl::StatusCode::kInvalidArgument);
  location.set_device(-1);
  EXPECT_EQ(FromProto(location, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(NodeMessages, UnknownLocationKind_IsRefused) {
  v1::Location location;
  location.set_kind(static_cast<v1::LocationKind>(17));
  EXPECT_EQ(FromProto(location, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(NodeMessages, ManifestWithOtherId_IsDataLoss) {
  ImageLayout layout;
  layout.tensors.push_back({.name = "w", .dtype = DType::kU8, .shape = {3}, .nbytes = 3});
  ASSERT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {});
  ASSERT_TRUE(manifest.ok());
  EXPECT_TRUE(DecodeManifest((*manifest)->bytes(), (*manifest)->id()).ok());
  EXPECT_EQ(DecodeManifest((*manifest)->bytes(), ArtifactId("another")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeManifest("rubbish", (*manifest)->id()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tensorcast::daemon::node_messages_test
