#include "core/device/copy_queue.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/device/fake_device.h"
#include "core/device/testing/fault_hooks.h"
#include "gtest/gtest.h"

namespace tensorcast::copy_queue_test {
namespace {

constexpr uint64_t kBytes = 4096;

class CopyQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = CreateFakeRuntime({.device_count = 1, .device_bytes = 1 << 20, .hooks = HooksOf(faults_)});
    ASSERT_TRUE(runtime.ok());
    runtime_ = *std::move(runtime);
    memory_ = *runtime_->Allocate(0, kBytes);
  }

  absl::StatusOr<CopyQueue::Pending> Upload(CopyQueue& queue, uint64_t offset,
                                            std::span<const std::byte> bytes) {
    return queue.ToDevice(memory_ + offset, {&bytes, 1});
  }
  // Copies are held up from here on, until LetGo.
  void Hold() { faults_->copy_delay_ns = int64_t{3600} * 1'000'000'000; }
  void LetGo() { faults_->copy_delay_ns = 0; }

  const std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  std::unique_ptr<DeviceRuntime> runtime_;
  DevicePtr memory_;
};

TEST_F(CopyQueueTest, CopyQueue_CopiesPiecesInOrderToDeviceAndBack) {
  CopyQueue up(runtime_.get(), 0);
  CopyQueue down(runtime_.get(), 0);
  const std::vector<std::byte> ones(100, std::byte{1});
  const std::vector<std::byte> twos(200, std::byte{2});
  const std::vector<std::span<const std::byte>> pieces = {ones, twos};
  auto sent = up.ToDevice(memory_, pieces);
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_TRUE(sent->Await().ok());
  std::vector<std::byte> back(300);
  auto received = down.ToHost(back, memory_);
  ASSERT_TRUE(received.ok()) << received.status();
  ASSERT_TRUE(received->Await().ok());
  EXPECT_EQ(std::vector<std::byte>(back.begin(), back.begin() + 100), ones);
  EXPECT_EQ(std::vector<std::byte>(back.begin() + 100, back.end()), twos);
}

TEST_F(CopyQueueTest, DroppedPendingCopy_IsAwaited) {
  CopyQueue queue(runtime_.get(), 0);
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  Hold();
  auto copy = Upload(queue, 0, bytes);
  ASSERT_TRUE(copy.ok());
  std::thread dropping([pending = *std::move(copy)]() mutable { pending = CopyQueue::Pending(); });
  LetGo();
  dropping.join();
  EXPECT_TRUE(runtime_->Free(memory_).ok()) << "nothing uses it any more";
}

TEST_F(CopyQueueTest, CopyError_FailsLaterCopiesUntilAwaited) {
  CopyQueue queue(runtime_.get(), 0);
  const std::vector<std::byte> bytes(16, std::byte{7});
  Hold();
  auto first = Upload(queue, 0, bytes);
  auto second = Upload(queue, 16, bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  faults_->fail_copies = 1;
  LetGo();
  EXPECT_FALSE(second->Await().ok())
      << "though its own copy went well: each copy reports an earlier error of its stream";
  EXPECT_FALSE(first->Await().ok()) << "each copy reports the error, not only the first that is awaited";
  auto third = Upload(queue, 32, bytes);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(third->Await().ok());
}

TEST_F(CopyQueueTest, RefusedCopy_LeavesNothingInFlight) {
  CopyQueue queue(runtime_.get(), 0);
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  const std::vector<std::span<const std::byte>> too_long = {bytes, bytes};
  EXPECT_EQ(queue.ToDevice(memory_, too_long).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(runtime_->Free(memory_).ok()) << "nothing uses it any more";
}

}  // namespace
}  // namespace tensorcast::copy_queue_test
