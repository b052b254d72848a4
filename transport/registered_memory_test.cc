#include "transport/registered_memory.h"

#include <array>

#include <gtest/gtest.h>

namespace tensorcast::transport::registered_memory_test {
namespace {

class RegisteredMemoryTest : public testing::Test {
 protected:
  HostSpan Span(size_t offset, size_t bytes) { return HostSpan(bytes_).subspan(offset, bytes); }

  std::array<std::byte, 1024> bytes_{};
  RegisteredMemory memory_;
};

TEST_F(RegisteredMemoryTest, RegionOf_FindsRegionThatHoldsWholeSpan) {
  ASSERT_EQ(*memory_.Add(&bytes_[0], 256), 0u);
  ASSERT_EQ(*memory_.Add(&bytes_[512], 512), 1u);
  EXPECT_EQ(memory_.RegionOf(Span(0, 256)), 0u);
  EXPECT_EQ(memory_.RegionOf(Span(1023, 1)), 1u);
  EXPECT_EQ(memory_.RegionOf(Span(255, 2)), std::nullopt);
  EXPECT_EQ(memory_.RegionOf(Span(300, 1)), std::nullopt);
  EXPECT_EQ(memory_.RegionOf(Span(500, 24)), std::nullopt);
}

TEST_F(RegisteredMemoryTest, AddRegion_RefusesEmptyAndOverlappingRegions) {
  EXPECT_EQ(memory_.Add(&bytes_[0], 0).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(memory_.Add(&bytes_[100], 100).ok());
  EXPECT_EQ(memory_.Add(&bytes_[199], 10).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory_.Add(&bytes_[200], 10).ok());
}

TEST_F(RegisteredMemoryTest, DeviceRegion_IsRemovedWithItsLastUser) {
  const DevicePtr first{.device = 0, .address = 0x5000'0000'0000};
  const DevicePtr second{.device = 1, .address = 0x6000'0000'0000};
  ASSERT_EQ(*memory_.Add(&bytes_[0], 256), 0u);
  const auto added = memory_.AddDevice(first, 4096);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->region, 1u);
  EXPECT_TRUE(added->is_new);
  EXPECT_FALSE(memory_.AddDevice(first, 4096)->is_new);
  EXPECT_EQ(memory_.AddDevice(first + 1, 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(memory_.RemoveDevice(1));
  EXPECT_EQ(memory_.RegionOf(AddressesOf(first + 4095, 1)), 1u);
  EXPECT_TRUE(memory_.RemoveDevice(1));
  EXPECT_EQ(memory_.RegionOf(AddressesOf(first, 1)), std::nullopt);
  EXPECT_EQ(memory_.AddDevice(second, 4096)->region, 1u);
  EXPECT_EQ(*memory_.Add(&bytes_[512], 512), 2u);
}

TEST_F(RegisteredMemoryTest, DeviceAt_FindsDeviceOfItsRegionsOnly) {
  const DevicePtr image{.device = 3, .address = 0x5000'0000'0000};
  ASSERT_TRUE(memory_.Add(&bytes_[0], 256).ok());
  ASSERT_TRUE(memory_.AddDevice(image, 4096).ok());
  EXPECT_EQ(memory_.DeviceAt(AddressesOf(image + 100, 7)), image + 100);
  EXPECT_FALSE(memory_.DeviceAt(AddressesOf(image + 4000, 200)));
  EXPECT_FALSE(memory_.DeviceAt(Span(0, 256)));
  EXPECT_FALSE(memory_.DeviceAt({}));
}

TEST_F(RegisteredMemoryTest, CheckFetch_RefusesRangePastImageOrRegion) {
  ASSERT_TRUE(memory_.Add(&bytes_[0], 512).ok());
  EXPECT_EQ(*CheckFetch(memory_, 100, 40, {Span(0, 20), Span(100, 40)}), 60u);
  EXPECT_EQ(*CheckFetch(memory_, 100, 100, {}), 0u);
  EXPECT_EQ(CheckFetch(memory_, 100, 41, {Span(0, 60)}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckFetch(memory_, 100, ~uint64_t{0}, {Span(0, 60)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckFetch(memory_, 100, 0, {Span(500, 60)}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RegisteredMemoryTest, CheckSegments_NeedsRegisteredMemoryOfImageSize) {
  ASSERT_TRUE(memory_.Add(&bytes_[0], 512).ok());
  EXPECT_TRUE(CheckSegments(memory_, 30, {Span(0, 10), Span(50, 20)}).ok());
  EXPECT_EQ(CheckSegments(memory_, 31, {Span(0, 10), Span(50, 20)}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckSegments(memory_, 30, {Span(0, 10), Span(600, 20)}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegisteredMemoryTest, SliceSegments_CrossesSegmentsInOrder) {
  const std::vector<ConstHostSpan> segments = {Span(100, 10), Span(0, 10), Span(50, 10)};
  const std::vector<ConstHostSpan> slices = SliceSegments(segments, 5, 20);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].data(), &bytes_[105]);
  EXPECT_EQ(slices[0].size(), 5u);
  EXPECT_EQ(slices[1].data(), &bytes_[0]);
  EXPECT_EQ(slices[2].data(), &bytes_[50]);
  EXPECT_EQ(slices[2].size(), 5u);
  EXPECT_TRUE(SliceSegments(segments, 30, 0).empty());
}

}  // namespace
}  // namespace tensorcast::transport::registered_memory_test
