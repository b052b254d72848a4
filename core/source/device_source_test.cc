#include "core/source/device_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "core/device/testing/fault_hooks.h"

namespace tensorcast::device_source_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint64_t kImageBytes = 9'000'001;  // three steps, the last one short

SourceInfo Info() { return {.type = SourceType::kLocal, .lane = "local", .name = "gpu:0 of node-b"}; }

class DeviceSource : public testing::Test {
 protected:
  void SetUp() override {
    runtime_ = *CreateFakeRuntime({.device_count = 1, .device_bytes = 64 << 20, .hooks = HooksOf(faults_)});
    std::mt19937 random(1);
    for (std::byte& byte : image_) byte = static_cast<std::byte>(random());
    device_image_ = *runtime_->Allocate(0, kImageBytes);
    auto stream = *runtime_->CreateStream(0);
    ASSERT_TRUE(stream->CopyToDevice(device_image_, image_.data(), kImageBytes).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  }

  std::unique_ptr<ChunkSource> MakeSource(int max_concurrency = 1,
                                          std::shared_ptr<void> keep_alive = nullptr) {
    auto source =
        MakeDeviceSource(Info(), runtime_.get(), device_image_, std::move(keep_alive), max_concurrency);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }

  ConstHostSpan Expected(const ByteRange& range) const {
    return ConstHostSpan(image_).subspan(range.offset, range.bytes);
  }

  std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  std::unique_ptr<DeviceRuntime> runtime_;
  Bytes image_ = Bytes(kImageBytes);
  DevicePtr device_image_;
};

TEST_F(DeviceSource, DeviceSource_CopiesAndDigestsRangeOnHost) {
  const auto source = MakeSource();
  for (const ByteRange range :
       {ByteRange{0, kImageBytes}, ByteRange{1, 8'500'000}, ByteRange{kImageBytes - 1, 1}}) {
    Bytes copy(range.bytes);
    const size_t cut = copy.size() / 3;
    const std::vector<HostSpan> destination = {HostSpan(copy).first(cut), HostSpan(copy).subspan(cut)};
    const auto digest = source->Fetch({}, {.range = range, .destination = destination, .blake3 = true});
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_TRUE(std::ranges::equal(copy, Expected(range)));
    EXPECT_EQ(**digest, (ChunkDigests{.xxh3 = ComputeDigest(Expected(range)),
                                      .blake3 = ComputeBlake3(Expected(range))}));
  }
}

TEST_F(DeviceSource, ConcurrentFetches_MayOutnumberDeviceStreams) {
  const auto source = MakeSource(2);
  EXPECT_EQ(source->max_concurrency(), 2);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const ByteRange range = {i * 1'000'000, 1'000'000};
      Bytes copy(range.bytes);
      const std::vector<HostSpan> destination = {copy};
      const auto digest = source->Fetch({}, {.range = range, .destination = destination});
      ASSERT_TRUE(digest.ok()) << digest.status();
      EXPECT_EQ((*digest)->xxh3, ComputeDigest(Expected(range)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeviceSource, FailedCopy_NamesChunkAndLeavesStreamUsable) {
  const auto source = MakeSource();
  Bytes copy(1'000'000);
  const std::vector<HostSpan> destination = {copy};
  const ChunkRequest request = {.chunk = 5, .range = {0, 1'000'000}, .destination = destination};
  faults_->fail_copies = 1;
  const absl::Status failed = source->Fetch({}, request).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(failed.message(), "fetch chunk 5 from gpu:0 of node-b")) << failed;
  EXPECT_TRUE(source->Fetch({}, request).ok());
}

TEST_F(DeviceSource, DeviceSource_RefusesRangeOutsideImage) {
  const auto source = MakeSource();
  Bytes copy(20);
  const std::vector<HostSpan> destination = {copy};
  EXPECT_EQ(source->Fetch({}, {.range = {kImageBytes - 19, 20}, .destination = destination}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->Fetch({}, {.range = {0, 21}, .destination = destination}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceSource, DeviceSource_StopsOnCancellationAndAtDeadline) {
  const auto source = MakeSource();
  Bytes copy(100, std::byte{0});
  const std::vector<HostSpan> destination = {copy};
  const ChunkRequest request = {.range = {0, 100}, .destination = destination};
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(source->Fetch(cancelled, request).status().code(), absl::StatusCode::kCancelled);
  RequestContext late;
  late.deadline = SteadyNow() - absl::Seconds(1);
  EXPECT_EQ(source->Fetch(late, request).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(copy, Bytes(100, std::byte{0}));
}

TEST_F(DeviceSource, DeviceSource_HoldsItsLeaseUntilDestroyed) {
  auto lease = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = lease;
  auto source = MakeSource(1, std::move(lease));
  EXPECT_FALSE(watch.expired());
  source.reset();
  EXPECT_TRUE(watch.expired());
}

TEST_F(DeviceSource, DeviceSource_IsRefusedForUnknownDevice) {
  const auto source = MakeDeviceSource(Info(), runtime_.get(), {.device = 3, .address = 1}, nullptr, 1);
  EXPECT_EQ(source.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::device_source_test
