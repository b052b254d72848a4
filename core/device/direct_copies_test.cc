#include "core/device/direct_copies.h"

#include <memory>
#include <optional>
#include <vector>

#include "base/testing/eventually.h"
#include "core/artifact/digest.h"
#include "core/device/fake_device.h"
#include "core/device/testing/device_bytes.h"
#include "core/device/testing/fault_hooks.h"
#include "gtest/gtest.h"

namespace tensorcast::direct_copies_test {
namespace {

constexpr uint64_t kBytes = 40'000;

class DirectCopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runtime = CreateFakeRuntime({.device_count = 2, .device_bytes = 1 << 20, .hooks = HooksOf(faults_)});
    ASSERT_TRUE(runtime.ok());
    runtime_ = *std::move(runtime);
    from_ = *runtime_->Allocate(0, kBytes);
    to_ = *runtime_->Allocate(1, kBytes);
    ASSERT_TRUE(testing::Upload(*runtime_, from_, bytes_).ok());
    copies_.emplace(runtime_.get());
  }

  void Hold() { faults_->copy_delay_ns = int64_t{3600} * 1'000'000'000; }
  void LetGo() { faults_->copy_delay_ns = 0; }
  std::vector<std::byte> There(uint64_t bytes) { return *testing::Download(*runtime_, to_, bytes); }
  static DigestBytes DigestOf(std::span<const std::byte> bytes) { return ComputeDigest(bytes).bytes; }

  const std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  const std::vector<std::byte> bytes_ = testing::Pattern(1, kBytes);
  std::unique_ptr<DeviceRuntime> runtime_;
  DevicePtr from_;
  DevicePtr to_;
  std::optional<DirectCopies> copies_;
};

TEST_F(DirectCopiesTest, DirectCopy_ReturnsDigestOfCopiedBytes) {
  auto copy = copies_->Begin(to_, from_, kBytes);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->Await().value(), DigestOf(bytes_));
  EXPECT_EQ(There(kBytes), bytes_);
}

TEST_F(DirectCopiesTest, DirectCopyOntoItself_OnlyDigests) {
  faults_->fail_copies = 1;
  auto digest = copies_->Begin(from_ + 7, from_ + 7, 1000);
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ(digest->Await().value(), DigestOf(std::span(bytes_).subspan(7, 1000)));
  EXPECT_EQ(faults_->fail_copies, 1) << "nothing was copied";
}

TEST_F(DirectCopiesTest, DirectCopies_RunConcurrently) {
  Hold();
  std::vector<DirectCopies::Pending> pending;
  for (uint64_t i = 0; i < 4; ++i) pending.push_back(*copies_->Begin(to_ + 1000 * i, from_ + 1000 * i, 1000));
  EXPECT_TRUE(testing::Eventually([this] { return faults_->delayed_copies == 4; }));
  LetGo();
  for (size_t i = 0; i < pending.size(); ++i) {
    EXPECT_EQ(pending[i].Await().value(), DigestOf(std::span(bytes_).subspan(1000 * i, 1000)));
  }
}

TEST_F(DirectCopiesTest, FailedDirectCopy_LeavesNextCopyGood) {
  faults_->fail_copies = 1;
  auto failed = copies_->Begin(to_, from_, 1000);
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->Await().status().code(), absl::StatusCode::kInternal);
  auto next = copies_->Begin(to_, from_, 1000);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->Await().value(), DigestOf(std::span(bytes_).first(1000)));
}

TEST_F(DirectCopiesTest, DroppedDirectCopy_IsAwaited) {
  (void)copies_->Begin(to_, from_, kBytes).value();
  EXPECT_EQ(There(kBytes), bytes_);
  EXPECT_TRUE(runtime_->Free(to_).ok());
}

TEST_F(DirectCopiesTest, DirectCopy_RefusesRangesPastTheAllocation) {
  EXPECT_EQ(copies_->Begin(to_, from_ + 1, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copies_->Begin(to_ + 1, from_, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DirectCopiesTest, Reach_FollowsDeviceRuntime) {
  EXPECT_TRUE(copies_->Reach(0, 1));
  EXPECT_FALSE(DirectCopies(nullptr).Reach(0, 1));
}

}  // namespace
}  // namespace tensorcast::direct_copies_test
