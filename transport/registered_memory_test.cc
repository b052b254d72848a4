#include "transport/registered_memory.h"

#include <array>

#include <gtest/gtest.h>

namespace tensorcast::transport {
namespace {

class RegisteredMemoryTest : public testing::Test {
 protected:
  HostSpan Span(size_t offset, size_t bytes) { return HostSpan(bytes_).subspan(offset, bytes); }

  std::array<std::byte, 1024> bytes_{};
  RegisteredMemory memory_;
};

TEST_F(RegisteredMemoryTest, FindsTheRegionThatHoldsAllOfASpan) {
  ASSERT_EQ(*memory_.Add(&bytes_[0], 256), 0u);
  ASSERT_EQ(*memory_.Add(&bytes_[512], 512), 1u);
  EXPECT_EQ(memory_.RegionOf(Span(0, 256)), 0u);
  EXPECT_EQ(memory_.RegionOf(Span(1023, 1)), 1u);
  EXPECT_EQ(memory_.RegionOf(Span(255, 2)), std::nullopt);
  EXPECT_EQ(memory_.RegionOf(Span(300, 1)), std::nullopt);
  EXPECT_EQ(memory_.RegionOf(Span(500, 24)), std::nullopt);
}

TEST_F(RegisteredMemoryTest, RefusesEmptyAndOverlappingRegions) {
  EXPECT_EQ(memory_.Add(&bytes_[0], 0).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(memory_.Add(&bytes_[100], 100).ok());
  EXPECT_EQ(memory_.Add(&bytes_[199], 10).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory_.Add(&bytes_[200], 10).ok());
}

TEST_F(RegisteredMemoryTest, AFetchMustStayInsideTheImageAndTheRegion) {
  ASSERT_TRUE(memory_.Add(&bytes_[0], 512).ok());
  EXPECT_EQ(*CheckFetch(memory_, 100, 40, {Span(0, 20), Span(100, 40)}), 60u);
  EXPECT_EQ(*CheckFetch(memory_, 100, 100, {}), 0u);
  EXPECT_EQ(CheckFetch(memory_, 100, 41, {Span(0, 60)}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckFetch(memory_, 100, ~uint64_t{0}, {Span(0, 60)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckFetch(memory_, 100, 0, {Span(500, 60)}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RegisteredMemoryTest, SegmentsMustBeRegisteredAndAsLongAsTheImage) {
  ASSERT_TRUE(memory_.Add(&bytes_[0], 512).ok());
  EXPECT_TRUE(CheckSegments(memory_, 30, {Span(0, 10), Span(50, 20)}).ok());
  EXPECT_EQ(CheckSegments(memory_, 31, {Span(0, 10), Span(50, 20)}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckSegments(memory_, 30, {Span(0, 10), Span(600, 20)}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegisteredMemoryTest, SlicesCrossSegmentsInOrder) {
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
}  // namespace tensorcast::transport
