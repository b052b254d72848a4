// The daemon's end against a real process: this test started again, with fake GPUs and a library that copies
// and, by the number of bytes that it is to broadcast, does what NCCL does on a bad day.
#include "collective/helper/helper_process.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string_view>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/testing/eventually.h"
#include "collective/helper/serve.h"
#include "core/device/fake_device.h"
#include "gmock/gmock.h"

namespace tensorcast {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr uint64_t kHangs = 1001;
constexpr uint64_t kCrashes = 1002;
constexpr uint64_t kFails = 1003;
constexpr int kGpus = 4;

std::unique_ptr<DeviceRuntime> MakeDevices() {
  return CreateFakeRuntime({.device_count = kGpus, .device_bytes = uint64_t{16} << 20}).value();
}

class CopyingCommunicator final : public Communicator {
 public:
  explicit CopyingCommunicator(DeviceRuntime* devices) : devices_(devices) {}

  absl::Status Broadcast(const RequestContext&, int root, absl::Span<const DevicePtr> buffers,
                         uint64_t bytes) override {
    if (bytes == kHangs) pause();
    if (bytes == kCrashes) abort();
    if (bytes == kFails) return absl::UnavailableError("a rank is lost");
    for (const DevicePtr& buffer : buffers) {
      if (buffer == buffers[root]) continue;
      const auto stream = devices_->CreateStream(buffer.device).value();
      if (absl::Status copied = stream->CopyOnDevice(buffer, buffers[root], bytes); !copied.ok()) {
        return copied;
      }
      if (absl::Status done = stream->Synchronize(); !done.ok()) return done;
    }
    return absl::OkStatus();
  }
  absl::Status Await(const RequestContext&) override { return absl::OkStatus(); }
  void Abort() override {}

 private:
  DeviceRuntime* const devices_;
};

// No set of devices joins twice in one process.
class CopyingLibrary final : public CollectiveLibrary {
 public:
  CopyingLibrary(DeviceRuntime* devices, bool joins) : devices_(devices), joins_(joins) {}

  std::string version() const override { return "0"; }
  absl::StatusOr<CommunicatorId> MakeId() override { return CommunicatorId{.bytes = std::string(128, 'i')}; }
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext&, const CommunicatorId& id,
                                                     int world_size,
                                                     absl::Span<const RankDevice> ranks) override {
    if (!joins_) return absl::InternalError("the driver is too old");
    std::set<int> devices;
    for (const RankDevice& rank : ranks) devices.insert(rank.device);
    if (id.bytes.size() != 128 || world_size != static_cast<int>(ranks.size()) ||
        !joined_.insert(devices).second) {
      return absl::InvalidArgumentError("not as it should be");
    }
    return std::make_unique<CopyingCommunicator>(devices_);
  }

 private:
  DeviceRuntime* const devices_;
  const bool joins_;
  std::set<std::set<int>> joined_;
};

class HelperProcessTest : public ::testing::Test {
 protected:
  HelperProcessTest() {
    for (int i = 0; i < kGpus; ++i) replicas_.push_back(devices_->Allocate(i, kBytes).value());
  }
  ~HelperProcessTest() override {
    helper_.reset();
    for (const DevicePtr& replica : replicas_) EXPECT_TRUE(devices_->Free(replica).ok());
  }

  void Start(const std::string& argument, absl::Duration progress_timeout = absl::Seconds(60)) {
    helper_ = std::make_unique<HelperProcess>(
        devices_.get(),
        HelperOptions{.argv = {"/proc/self/exe", argument}, .progress_timeout = progress_timeout});
  }
  void StartAndAwait(absl::Duration progress_timeout = absl::Seconds(60)) {
    Start("--good", progress_timeout);
    ASSERT_TRUE(Eventually([this] { return helper_->available(); }));
  }
  void Fill(const DevicePtr& replica, char value) {
    const std::vector<std::byte> bytes(kBytes, std::byte(value));
    const auto stream = devices_->CreateStream(replica.device).value();
    CHECK_OK(stream->CopyToDevice(replica, bytes.data(), kBytes));
    CHECK_OK(stream->Synchronize());
  }
  std::vector<std::byte> Read(const DevicePtr& replica) {
    std::vector<std::byte> bytes(kBytes);
    const auto stream = devices_->CreateStream(replica.device).value();
    CHECK_OK(stream->CopyToHost(bytes.data(), replica, kBytes));
    CHECK_OK(stream->Synchronize());
    return bytes;
  }
  // The whole image from the first of them to the others, with a value of its own.
  void ExpectBroadcast(const std::vector<DevicePtr>& replicas, char value) {
    const auto group = helper_->Open(replicas);
    ASSERT_TRUE(group.ok()) << group.status();
    Fill(replicas.front(), value);
    const std::vector<ByteRange> ranges = {{4096, kBytes - 4096}, {0, 4096}};
    const absl::Status sent = (*group)->Broadcast(ranges);
    ASSERT_TRUE(sent.ok()) << sent;
    for (const DevicePtr& replica : replicas) {
      EXPECT_EQ(Read(replica), std::vector<std::byte>(kBytes, std::byte(value))) << "gpu:" << replica.device;
    }
  }
  absl::Status BroadcastOf(uint64_t bytes) {
    auto group = helper_->Open(replicas_);
    if (!group.ok()) return group.status();
    const std::vector<ByteRange> ranges = {{0, bytes}};
    absl::Status first = (*group)->Broadcast(ranges);
    EXPECT_FALSE((*group)->Broadcast(ranges).ok()) << "it is of no more use";
    return first;
  }

  const std::unique_ptr<DeviceRuntime> devices_ = MakeDevices();
  std::vector<DevicePtr> replicas_;
  std::unique_ptr<HelperProcess> helper_;
};

TEST_F(HelperProcessTest, BroadcastsFromWhicheverReplicaIsFirst) {
  StartAndAwait();
  ExpectBroadcast(replicas_, 'a');
  ExpectBroadcast({replicas_[2], replicas_[0], replicas_[3], replicas_[1]}, 'b');
  ExpectBroadcast({replicas_[3], replicas_[1], replicas_[2]}, 'c');
}

TEST_F(HelperProcessTest, MoreRangesThanFitAMessageAreSentAllTheSame) {
  StartAndAwait();
  Fill(replicas_[0], 'x');
  std::vector<ByteRange> ranges;
  for (uint64_t offset = 0; offset < kBytes; offset += 1000) {
    ranges.push_back({offset, std::min<uint64_t>(1000, kBytes - offset)});
  }
  ASSERT_GT(ranges.size(), helper::kMostRanges);
  const auto group = helper_->Open(std::vector<DevicePtr>{replicas_[0], replicas_[1]});
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status sent = (*group)->Broadcast(ranges);
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(Read(replicas_[1]), std::vector<std::byte>(kBytes, std::byte('x')));
}

TEST_F(HelperProcessTest, OneThatHangsIsKilledAndStartedAgain) {
  StartAndAwait(absl::Seconds(1));
  EXPECT_EQ(BroadcastOf(kHangs).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(helper_->available());
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, OneThatCrashesIsStartedAgain) {
  StartAndAwait();
  EXPECT_EQ(BroadcastOf(kCrashes).code(), absl::StatusCode::kUnavailable);
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, AnErrorOfTheLibraryCostsTheProcessToo) {
  StartAndAwait();
  EXPECT_THAT(std::string(BroadcastOf(kFails).message()), HasSubstr("a rank is lost"));
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, OneGroupAtATime) {
  StartAndAwait();
  const auto group = helper_->Open(replicas_);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE(helper_->available());
  EXPECT_EQ(helper_->Open(replicas_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HelperProcessTest, TakesNoTwoReplicasOfOneDevice) {
  StartAndAwait();
  const std::vector<DevicePtr> same = {replicas_[0], replicas_[1], replicas_[1]};
  EXPECT_EQ(helper_->Open(same).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, WithoutALibraryThereAreNoBroadcasts) {
  Start("--no-library");
  ASSERT_TRUE(Eventually(
      [this] { return absl::StrContains(helper_->Open(replicas_).status().message(), "no broadcasts"); }));
  EXPECT_FALSE(helper_->available());
}

TEST_F(HelperProcessTest, AfterAGroupThatCouldNotFormNoneIsTriedForAWhile) {
  Start("--no-joining");
  ASSERT_TRUE(Eventually([this] { return helper_->available(); }));
  EXPECT_THAT(std::string(helper_->Open(replicas_).status().message()), HasSubstr("driver is too old"));
  EXPECT_FALSE(helper_->available());
  EXPECT_THAT(std::string(helper_->Open(replicas_).status().message()), HasSubstr("none is tried yet"));
}

TEST_F(HelperProcessTest, CanBeDestroyedWhileItStarts) {
  Start("--never");
  helper_.reset();
}

absl::StatusOr<helper::HelperTools> MakeTools(std::string_view argument) {
  if (argument == "--no-library") return absl::UnavailableError("there is no library");
  if (argument == "--never") pause();
  helper::HelperTools tools;
  tools.devices = MakeDevices();
  tools.library = std::make_unique<CopyingLibrary>(tools.devices.get(), argument != "--no-joining");
  return tools;
}

}  // namespace
}  // namespace tensorcast

int main(int argc, char** argv) {
  int fd = -1;
  if (argc == 3 && absl::SimpleAtoi(absl::StripPrefix(argv[2], "--fd="), &fd)) {
    return tensorcast::helper::Serve(fd, [&] { return tensorcast::MakeTools(argv[1]); }).ok() ? 0 : 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
