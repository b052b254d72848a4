// The daemon's end against a real process: this test started again, with fake GPUs and a library that copies
// and, by the number of bytes that it is to broadcast, does what NCCL does on a bad day.
#include "collective/helper/helper_process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
constexpr int kMaxMails = 8;

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

// One with ranks in other processes: files, which the id names, carry its bytes there.
class MailingCommunicator final : public Communicator {
 public:
  MailingCommunicator(DeviceRuntime* devices, std::string prefix, absl::Span<const RankDevice> ranks)
      : devices_(devices), prefix_(std::move(prefix)), ranks_(ranks.begin(), ranks.end()) {}

  absl::Status Broadcast(const RequestContext&, int root, absl::Span<const DevicePtr> buffers,
                         uint64_t bytes) override {
    const std::string mail = absl::StrCat(prefix_, ".", ++broadcasts_);
    std::vector<std::byte> content(bytes);
    const auto at = std::ranges::find(ranks_, root, &RankDevice::rank);
    if (at != ranks_.end()) {
      const DevicePtr& sent = buffers[at - ranks_.begin()];
      const auto stream = devices_->CreateStream(sent.device).value();
      CHECK_OK(stream->CopyToHost(content.data(), sent, bytes));
      CHECK_OK(stream->Synchronize());
      std::ofstream(mail + "~")
          .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(bytes));
      std::filesystem::rename(mail + "~", mail);
    } else {
      if (!Eventually([&] { return std::filesystem::exists(mail); })) {
        return absl::UnavailableError("no mail");
      }
      std::ifstream(mail).read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
    }
    for (const DevicePtr& buffer : buffers) {
      const auto stream = devices_->CreateStream(buffer.device).value();
      CHECK_OK(stream->CopyToDevice(buffer, content.data(), bytes));
      CHECK_OK(stream->Synchronize());
    }
    return absl::OkStatus();
  }
  absl::Status Await(const RequestContext&) override { return absl::OkStatus(); }
  void Abort() override {}

 private:
  DeviceRuntime* const devices_;
  const std::string prefix_;
  const std::vector<RankDevice> ranks_;
  int broadcasts_ = 0;
};

// No set of devices joins twice in one process.
class CopyingLibrary final : public CollectiveLibrary {
 public:
  CopyingLibrary(DeviceRuntime* devices, bool joins) : devices_(devices), joins_(joins) {}

  std::string version() const override { return "2.0.1"; }
  absl::StatusOr<CommunicatorId> MakeId() override { return CommunicatorId{.bytes = std::string(128, 'i')}; }
  absl::StatusOr<std::unique_ptr<Communicator>> Join(const RequestContext&, const CommunicatorId& id,
                                                     int world_size,
                                                     absl::Span<const RankDevice> ranks) override {
    if (!joins_) return absl::InternalError("the driver is too old");
    if (world_size > static_cast<int>(ranks.size())) {
      return std::make_unique<MailingCommunicator>(devices_, id.bytes, ranks);
    }
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
        devices_.get(), HelperOptions{.argv = {"helper", argument}, .progress_timeout = progress_timeout});
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

TEST_F(HelperProcessTest, Broadcast_ReachesAllReplicasFromAnyRoot) {
  StartAndAwait();
  ExpectBroadcast(replicas_, 'a');
  ExpectBroadcast({replicas_[2], replicas_[0], replicas_[3], replicas_[1]}, 'b');
  ExpectBroadcast({replicas_[3], replicas_[1], replicas_[2]}, 'c');
}

TEST_F(HelperProcessTest, Broadcast_SendsMoreRangesThanFitOneMessage) {
  StartAndAwait();
  Fill(replicas_[0], 'x');
  std::vector<ByteRange> ranges;
  for (uint64_t offset = 0; offset < kBytes; offset += 1000) {
    ranges.push_back({offset, std::min<uint64_t>(1000, kBytes - offset)});
  }
  ASSERT_GT(ranges.size(), helper::kMaxRanges);
  const auto group = helper_->Open(std::vector<DevicePtr>{replicas_[0], replicas_[1]});
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status sent = (*group)->Broadcast(ranges);
  ASSERT_TRUE(sent.ok()) << sent;
  EXPECT_EQ(Read(replicas_[1]), std::vector<std::byte>(kBytes, std::byte('x')));
}

TEST_F(HelperProcessTest, HangingHelper_IsKilledAndRestarted) {
  StartAndAwait(absl::Seconds(1));
  EXPECT_EQ(BroadcastOf(kHangs).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(helper_->available());
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, CrashedHelper_IsRestarted) {
  StartAndAwait();
  EXPECT_EQ(BroadcastOf(kCrashes).code(), absl::StatusCode::kUnavailable);
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, LibraryError_RestartsTheHelper) {
  StartAndAwait();
  EXPECT_THAT(std::string(BroadcastOf(kFails).message()), HasSubstr("a rank is lost"));
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, OpenGroup_MakesHelperUnavailableForAnotherGroup) {
  StartAndAwait();
  const auto group = helper_->Open(replicas_);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE(helper_->available());
  EXPECT_EQ(helper_->Open(replicas_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HelperProcessTest, OpenGroup_RefusesTwoReplicasOnOneDevice) {
  StartAndAwait();
  const std::vector<DevicePtr> same = {replicas_[0], replicas_[1], replicas_[1]};
  EXPECT_EQ(helper_->Open(same).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectBroadcast(replicas_, 'a');
}

TEST_F(HelperProcessTest, OpenGroup_FailsWithoutLibrary) {
  Start("--no-library");
  ASSERT_TRUE(Eventually([this] {
    return absl::StrContains(helper_->Open(replicas_).status().message(), "no helper process");
  }));
  EXPECT_FALSE(helper_->available());
}

TEST_F(HelperProcessTest, FailedJoin_DelaysNextGroup) {
  Start("--no-joining");
  ASSERT_TRUE(Eventually([this] { return helper_->available(); }));
  EXPECT_THAT(std::string(helper_->Open(replicas_).status().message()), HasSubstr("driver is too old"));
  EXPECT_FALSE(helper_->available());
  EXPECT_THAT(std::string(helper_->Open(replicas_).status().message()),
              HasSubstr("the pause after this failure has not ended"));
  const auto wide = helper_->Reserve(RequestContext::Background(absl::Seconds(60)));
  EXPECT_THAT(std::string(wide.status().message()), HasSubstr("the pause after this failure has not ended"));
}

// Two GPUs of one node, and two of another.
class WideGroupTest : public HelperProcessTest {
 protected:
  ~WideGroupTest() override {
    for (int i = 1; i <= kMaxMails; ++i) std::filesystem::remove(absl::StrCat(mail_, ".", i));
  }
  void StartBoth() {
    StartAndAwait();
    other_ = std::make_unique<HelperProcess>(devices_.get(), HelperOptions{.argv = {"helper", "--good"}});
    root_ = helper_->Reserve(Soon()).value();
    receiver_ = other_->Reserve(Soon()).value();
    const BroadcastWorld world{.id = mail_, .size = 4, .root = 1};
    BroadcastWorld here = world;
    here.ranks = {0, 1};
    CHECK_OK(root_->Join(std::vector<DevicePtr>{replicas_[0], replicas_[1]}, here));
    here.ranks = {2, 3};
    CHECK_OK(receiver_->Join(std::vector<DevicePtr>{replicas_[2], replicas_[3]}, here));
  }
  static RequestContext Soon() { return RequestContext::Background(absl::Seconds(60)); }

  const std::string mail_ = absl::StrCat(::testing::TempDir(), "/helper_process_test.", getpid(), ".mail");
  std::unique_ptr<HelperProcess> other_;
  std::unique_ptr<WideBroadcastGroup> root_;
  std::unique_ptr<WideBroadcastGroup> receiver_;
};

TEST_F(WideGroupTest, WideBroadcast_TellsReceiverTheRanges) {
  StartBoth();
  Fill(replicas_[1], 'x');
  const std::vector<ByteRange> ranges = {{4096, 8192}, {0, 4096}, {12288, kBytes - 12288}};
  CHECK_OK(root_->Broadcast(ranges));
  EXPECT_EQ(receiver_->Receive().value(), ranges);
  for (const DevicePtr& replica : replicas_) {
    EXPECT_EQ(Read(replica), std::vector<std::byte>(kBytes, std::byte('x'))) << "gpu:" << replica.device;
  }
  CHECK_OK(root_->Broadcast({}));
  EXPECT_TRUE(receiver_->Receive().value().empty());
  root_.reset();
  receiver_.reset();
  ExpectBroadcast(replicas_, 'y');
}

TEST_F(WideGroupTest, WideReceive_RefusesRangesPastTheEnd) {
  StartBoth();
  std::ofstream(mail_ + ".1") << helper::EncodeHeader({{kBytes, 1}});
  EXPECT_THAT(std::string(receiver_->Receive().status().message()), HasSubstr(": the memory has "));
  EXPECT_FALSE(receiver_->Receive().ok()) << "it is of no more use";
}

TEST_F(WideGroupTest, OpenWideGroup_RefusesAnotherGroupUntilClosed) {
  StartBoth();
  EXPECT_FALSE(helper_->available());
  EXPECT_EQ(helper_->version().value(), "2.0.1");
  EXPECT_EQ(helper_->Reserve(RequestContext::Background(absl::Milliseconds(1))).status().code(),
            absl::StatusCode::kUnavailable);
  root_.reset();
  EXPECT_TRUE(helper_->Reserve(Soon()).ok());
}

TEST_F(HelperProcessTest, Destructor_EndsHelperThatIsStillStarting) {
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
