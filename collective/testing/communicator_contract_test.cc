// What every collective library must do: NCCL's stand-in on stand-in GPUs always runs it, NCCL itself where
// there are GPUs (`gpu`). Which one is loaded is the program's: TENSORCAST_TEST_NCCL, or the system's.
//
// Ranks are threads of the test or processes: this binary started again, with a role.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collective/communicator.h"
#include "core/device/fake_device.h"
#include "core/device/testing/device_bytes.h"
#include "tools/workshop/cluster/process.h"

#ifndef TENSORCAST_TEST_NCCL
#define TENSORCAST_TEST_NCCL ""
#endif

namespace tensorcast {
namespace {

using ::testing::AnyOf;
using testing::Download;
using testing::Pattern;
using testing::Upload;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
// Longer than anything that goes well takes.
constexpr absl::Duration kPlenty = absl::Seconds(60);
// For what never ends by itself.
constexpr absl::Duration kShort = absl::Milliseconds(100);

// Ranks of this process, with the memory that they broadcast.
class Ranks {
 public:
  static absl::StatusOr<std::unique_ptr<Ranks>> Join(CollectiveLibrary& library, DeviceRuntime& devices,
                                                     const RequestContext& context, const CommunicatorId& id,
                                                     int world_size, std::vector<RankDevice> ranks,
                                                     uint64_t bytes) {
    std::unique_ptr<Ranks> joined(new Ranks(devices, std::move(ranks), bytes));
    for (const RankDevice& rank : joined->ranks_) {
      TC_ASSIGN_OR_RETURN(const DevicePtr buffer, devices.Allocate(rank.device, bytes));
      joined->buffers_.push_back(buffer);
    }
    TC_ASSIGN_OR_RETURN(joined->communicator_, library.Join(context, id, world_size, joined->ranks_));
    return joined;
  }
  ~Ranks() {
    communicator_.reset();
    for (const DevicePtr buffer : buffers_) CHECK_OK(devices_.Free(buffer));
  }

  Communicator& communicator() { return *communicator_; }
  const std::vector<DevicePtr>& buffers() const { return buffers_; }

  // The pattern of this seed from the root to all; each of this process's has it, then.
  absl::Status Exchange(int root, uint8_t seed, absl::Duration limit = kPlenty) {
    const std::vector<std::byte> sent = Pattern(seed, bytes_);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const std::vector<std::byte>& own = ranks_[i].rank == root ? sent : Pattern(seed + 1, bytes_);
      TC_RETURN_IF_ERROR(Upload(devices_, buffers_[i], own));
    }
    const RequestContext context = RequestContext::Background(limit);
    TC_RETURN_IF_ERROR(communicator_->Broadcast(context, root, buffers_, bytes_));
    TC_RETURN_IF_ERROR(communicator_->Await(context));
    for (size_t i = 0; i < ranks_.size(); ++i) {
      TC_ASSIGN_OR_RETURN(const std::vector<std::byte> received, Download(devices_, buffers_[i], bytes_));
      if (received != sent) {
        return absl::DataLossError(
            absl::StrCat("rank ", ranks_[i].rank, " did not get what ", root, " sent"));
      }
    }
    return absl::OkStatus();
  }

 private:
  Ranks(DeviceRuntime& devices, std::vector<RankDevice> ranks, uint64_t bytes)
      : devices_(devices), ranks_(std::move(ranks)), bytes_(bytes) {}

  DeviceRuntime& devices_;
  const std::vector<RankDevice> ranks_;
  const uint64_t bytes_;
  std::vector<DevicePtr> buffers_;
  std::unique_ptr<Communicator> communicator_;
};

// --- A rank in a process of its own.

constexpr char kRoleFlag[] = "--rank-process";

struct RankRole {
  std::string
      role;  // "exchange": once from each rank; "idle": joins, and does nothing more until it is killed
  CommunicatorId id;
  int world_size = 0;
  int rank = 0;
  uint64_t bytes = 0;
};

absl::Status RunRole(const RankRole& role) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRuntime> devices, CreateCudaRuntime());
  TC_ASSIGN_OR_RETURN(const auto library, LoadNccl(TENSORCAST_TEST_NCCL, devices.get()));
  TC_ASSIGN_OR_RETURN(const auto ranks,
                      Ranks::Join(*library, *devices, RequestContext::Background(kPlenty), role.id,
                                  role.world_size, {{.rank = role.rank, .device = role.rank}}, role.bytes));
  while (role.role == "idle") pause();
  for (int root = 0; root < role.world_size; ++root) {
    TC_RETURN_IF_ERROR(ranks->Exchange(root, static_cast<uint8_t>(root)));
  }
  return absl::OkStatus();
}

std::unique_ptr<Process> StartRank(const RankRole& role) {
  auto binary = OwnBinary();
  CHECK_OK(binary.status());
  auto process = Process::Start(
      {.argv = {*binary, kRoleFlag, role.role, absl::BytesToHexString(role.id.bytes),
                absl::StrCat(role.world_size), absl::StrCat(role.rank), absl::StrCat(role.bytes)}});
  CHECK_OK(process.status());
  return *std::move(process);
}

int MainOfRank(char** argv) {
  RankRole role{.role = argv[2]};
  CHECK(absl::HexStringToBytes(argv[3], &role.id.bytes));
  CHECK(absl::SimpleAtoi(argv[4], &role.world_size) && absl::SimpleAtoi(argv[5], &role.rank) &&
        absl::SimpleAtoi(argv[6], &role.bytes));
  const absl::Status status = RunRole(role);
  if (!status.ok()) fprintf(stderr, "rank %d: %s\n", role.rank, status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

// --- The contract.

class CommunicatorContract : public ::testing::Test {
 protected:
  void SetUp() override {
    auto devices = CreateCudaRuntime();
    if (absl::IsUnavailable(devices.status())) GTEST_SKIP() << "no collective library: " << devices.status();
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    auto library = LoadNccl(TENSORCAST_TEST_NCCL, devices_.get());
    if (absl::IsUnavailable(library.status())) GTEST_SKIP() << "no collective library: " << library.status();
    ASSERT_TRUE(library.ok()) << library.status();
    library_ = *std::move(library);
    if (devices_->devices().size() < 2) GTEST_SKIP() << "no collective library: one GPU is not a group";
  }

  CommunicatorId MustMakeId() {
    auto id = library_->MakeId();
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(CommunicatorId());
  }

  // Every GPU is a rank of this process.
  std::vector<RankDevice> All() const {
    std::vector<RankDevice> ranks;
    for (const DeviceInfo& device : devices_->devices()) ranks.push_back({device.ordinal, device.ordinal});
    return ranks;
  }
  absl::StatusOr<std::unique_ptr<Ranks>> Join(
      const CommunicatorId& id, int world_size, std::vector<RankDevice> ranks, uint64_t bytes = kMiB,
      const RequestContext& context = RequestContext::Background(kPlenty)) {
    return Ranks::Join(*library_, *devices_, context, id, world_size, std::move(ranks), bytes);
  }
  std::unique_ptr<Ranks> MustJoinAll(uint64_t bytes = kMiB) {
    auto ranks = Join(MustMakeId(), static_cast<int>(All().size()), All(), bytes);
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    return *std::move(ranks);
  }
  absl::Status JoinStatus(const CommunicatorId& id, int world_size, const std::vector<RankDevice>& ranks,
                          const RequestContext& context = RequestContext::Background(kPlenty)) {
    return library_->Join(context, id, world_size, ranks).status();
  }

  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<CollectiveLibrary> library_;
};

TEST_F(CommunicatorContract, Broadcast_ReachesEveryRankFromEveryRoot) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{17}, 3 * kMiB + 5}) {
    const std::unique_ptr<Ranks> ranks = MustJoinAll(bytes);
    for (const RankDevice& root : All()) {
      EXPECT_EQ(ranks->Exchange(root.rank, static_cast<uint8_t>(root.rank)), absl::OkStatus()) << bytes;
    }
  }
}

TEST_F(CommunicatorContract, Broadcasts_RunInEnqueueOrder) {
  const std::unique_ptr<Ranks> ranks = MustJoinAll();
  const RequestContext context = RequestContext::Background(kPlenty);
  for (size_t i = 0; i < All().size(); ++i) {
    ASSERT_TRUE(Upload(*devices_, ranks->buffers()[i], Pattern(static_cast<uint8_t>(i), kMiB)).ok());
  }
  const int world = static_cast<int>(All().size());
  for (int root = 0; root < world; ++root) {
    ASSERT_EQ(ranks->communicator().Broadcast(context, root, ranks->buffers(), kMiB >> root),
              absl::OkStatus());
  }
  ASSERT_EQ(ranks->communicator().Await(context), absl::OkStatus());
  // Each root but the first passes on what it got: had one come before its turn, it would have sent its own.
  const std::vector<std::byte> expected = Pattern(0, kMiB);
  for (const DevicePtr buffer : ranks->buffers()) {
    EXPECT_EQ(Download(*devices_, buffer, kMiB).value(), expected);
  }
}

TEST_F(CommunicatorContract, Broadcast_LeavesBytesOutsideItsRangeUnchanged) {
  const std::unique_ptr<Ranks> ranks = MustJoinAll(2 * kMiB);
  const RequestContext context = RequestContext::Background(kPlenty);
  std::vector<DevicePtr> middle;
  for (size_t i = 0; i < All().size(); ++i) {
    ASSERT_TRUE(Upload(*devices_, ranks->buffers()[i], Pattern(static_cast<uint8_t>(i), 2 * kMiB)).ok());
    middle.push_back(ranks->buffers()[i] + kMiB / 2);
  }
  ASSERT_EQ(ranks->communicator().Broadcast(context, 0, middle, kMiB), absl::OkStatus());
  ASSERT_EQ(ranks->communicator().Await(context), absl::OkStatus());
  const std::vector<std::byte> sent = Pattern(0, 2 * kMiB);
  for (size_t i = 0; i < All().size(); ++i) {
    std::vector<std::byte> expected = Pattern(static_cast<uint8_t>(i), 2 * kMiB);
    std::copy_n(sent.begin() + kMiB / 2, kMiB, expected.begin() + kMiB / 2);
    EXPECT_EQ(Download(*devices_, ranks->buffers()[i], 2 * kMiB).value(), expected) << i;
  }
}

TEST_F(CommunicatorContract, Ranks_JoinFromSeveralThreads) {
  const CommunicatorId id = MustMakeId();
  const int world = static_cast<int>(All().size());
  std::vector<std::thread> threads;
  for (const RankDevice& rank : All()) {
    threads.emplace_back([&, rank] {
      const auto ranks = Join(id, world, {rank});
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      for (int root = 0; root < world; ++root) {
        EXPECT_EQ((*ranks)->Exchange(root, static_cast<uint8_t>(root)), absl::OkStatus()) << rank.rank;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CommunicatorContract, Ranks_JoinFromSeveralProcesses) {
  const CommunicatorId id = MustMakeId();
  const int world = static_cast<int>(All().size());
  std::vector<std::unique_ptr<Process>> others;
  for (int rank = 1; rank < world; ++rank) {
    others.push_back(
        StartRank({.role = "exchange", .id = id, .world_size = world, .rank = rank, .bytes = 5 * kMiB}));
  }
  {
    const auto ranks = Join(id, world, {{.rank = 0, .device = 0}}, 5 * kMiB);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    for (int root = 0; root < world; ++root) {
      EXPECT_EQ((*ranks)->Exchange(root, static_cast<uint8_t>(root)), absl::OkStatus());
    }
  }
  for (const auto& other : others) EXPECT_EQ(other->Wait(SteadyNow() + kPlenty).value_or(-1), 0);
}

TEST_F(CommunicatorContract, Device_JoinsSeveralCommunicatorsAtOnce) {
  const std::unique_ptr<Ranks> first = MustJoinAll();
  const std::unique_ptr<Ranks> second = MustJoinAll();
  EXPECT_EQ(first->Exchange(0, 1), absl::OkStatus());
  EXPECT_EQ(second->Exchange(1, 2), absl::OkStatus());
  EXPECT_EQ(first->Exchange(1, 3), absl::OkStatus());
}

TEST_F(CommunicatorContract, Join_RefusesInvalidRanksAndKeepsIdUsable) {
  const CommunicatorId id = MustMakeId();
  EXPECT_EQ(JoinStatus(id, 2, {}).code(), kInvalid);
  EXPECT_EQ(JoinStatus(id, 2, {{2, 0}}).code(), kInvalid);
  EXPECT_EQ(JoinStatus(id, 2, {{-1, 0}}).code(), kInvalid);
  EXPECT_EQ(JoinStatus(id, 2, {{0, 0}, {0, 1}}).code(), kInvalid) << "one rank twice";
  EXPECT_EQ(JoinStatus(id, 2, {{0, 0}, {1, 0}}).code(), kInvalid) << "two ranks on a GPU";
  EXPECT_EQ(JoinStatus(id, 2, {{0, 1000}}).code(), kInvalid) << "no such GPU";
  EXPECT_EQ(JoinStatus({.bytes = "short"}, 2, {{0, 0}}).code(), kInvalid);
  EXPECT_EQ(JoinStatus(id, 1, {{0, 0}}), absl::OkStatus()) << "the id is as good as new";
}

TEST_F(CommunicatorContract, InvalidBroadcast_IsRefusedAndCommunicatorStaysUsable) {
  const std::unique_ptr<Ranks> ranks = MustJoinAll();
  const RequestContext context = RequestContext::Background(kPlenty);
  Communicator& communicator = ranks->communicator();
  std::vector<DevicePtr> buffers = ranks->buffers();
  EXPECT_EQ(communicator.Broadcast(context, -1, buffers, kMiB).code(), kInvalid);
  EXPECT_EQ(communicator.Broadcast(context, static_cast<int>(buffers.size()), buffers, kMiB).code(),
            kInvalid);
  EXPECT_EQ(communicator.Broadcast(context, 0, absl::MakeSpan(buffers).subspan(1), kMiB).code(), kInvalid);
  EXPECT_EQ(communicator.Broadcast(context, 0, buffers, kMiB + 1).code(), kInvalid) << "beyond the memory";
  std::swap(buffers.front(), buffers.back());
  EXPECT_EQ(communicator.Broadcast(context, 0, buffers, kMiB).code(), kInvalid) << "another rank's GPU";
  EXPECT_EQ(communicator.Broadcast(context, 0, ranks->buffers(), 0), absl::OkStatus());
  EXPECT_EQ(communicator.Await(context), absl::OkStatus());
  EXPECT_EQ(ranks->Exchange(0, 1), absl::OkStatus());
}

TEST_F(CommunicatorContract, Join_EndsAtDeadlineAndOnCancellation) {
  EXPECT_EQ(JoinStatus(MustMakeId(), 2, {{0, 0}}, RequestContext::Background(kShort)).code(),
            absl::StatusCode::kDeadlineExceeded);
  const RequestContext cancelled = RequestContext::Background(kPlenty);
  cancelled.cancellation.Cancel();
  EXPECT_EQ(JoinStatus(MustMakeId(), 2, {{0, 0}}, cancelled).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(MustJoinAll()->Exchange(0, 1), absl::OkStatus()) << "the GPU is as good as before";
}

TEST_F(CommunicatorContract, StoppedRank_AbortsOnlyItsCommunicator) {
  const CommunicatorId id = MustMakeId();
  const std::unique_ptr<Process> idle =
      StartRank({.role = "idle", .id = id, .world_size = 2, .rank = 1, .bytes = kMiB});
  const auto ranks = Join(id, 2, {{0, 0}});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_TRUE(idle->Signal(SIGSTOP).ok());
  EXPECT_EQ((*ranks)->Exchange(0, 1, kShort).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ((*ranks)->Exchange(0, 1).code(), absl::StatusCode::kFailedPrecondition) << "it was aborted";
  EXPECT_EQ(Download(*devices_, (*ranks)->buffers()[0], kMiB).value(), Pattern(1, kMiB))
      << "the memory is its owner's again, and the root's bytes are there";
  EXPECT_EQ(MustJoinAll()->Exchange(1, 2), absl::OkStatus());
}

TEST_F(CommunicatorContract, KilledRank_FailsBroadcastAndOthersFormNewCommunicator) {
  const CommunicatorId id = MustMakeId();
  const std::unique_ptr<Process> idle =
      StartRank({.role = "idle", .id = id, .world_size = 2, .rank = 1, .bytes = kMiB});
  const auto ranks = Join(id, 2, {{0, 0}});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_TRUE(idle->Signal(SIGKILL).ok());
  // NCCL does not notice where two GPUs of a host speak by their memory.
  EXPECT_THAT((*ranks)->Exchange(0, 1, absl::Seconds(5)).code(),
              AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ((*ranks)->Exchange(0, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MustJoinAll()->Exchange(1, 2), absl::OkStatus()) << "the ranks that are left form another one";
}

TEST_F(CommunicatorContract, Abort_EndsWaitOnAnotherThread) {
  const CommunicatorId id = MustMakeId();
  const std::unique_ptr<Process> idle =
      StartRank({.role = "idle", .id = id, .world_size = 2, .rank = 1, .bytes = kMiB});
  const auto ranks = Join(id, 2, {{0, 0}});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  absl::Status status;
  std::thread waits([&] { status = (*ranks)->Exchange(0, 1); });
  (*ranks)->communicator().Abort();
  (*ranks)->communicator().Abort();
  waits.join();
  // Whichever came first, the wait or its end.
  EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kCancelled, absl::StatusCode::kFailedPrecondition));
}

TEST_F(CommunicatorContract, Destructor_AbortsBusyCommunicator) {
  const CommunicatorId id = MustMakeId();
  const std::unique_ptr<Process> idle =
      StartRank({.role = "idle", .id = id, .world_size = 2, .rank = 1, .bytes = kMiB});
  auto ranks = Join(id, 2, {{0, 0}});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const absl::Status enqueued = (*ranks)->communicator().Broadcast(
      RequestContext::Background(absl::Seconds(5)), 0, (*ranks)->buffers(), kMiB);
  // NCCL may want to connect first, and the other rank is not there.
  EXPECT_THAT(enqueued.code(), AnyOf(absl::StatusCode::kOk, absl::StatusCode::kDeadlineExceeded));
  ranks->reset();
  EXPECT_EQ(MustJoinAll()->Exchange(1, 2), absl::OkStatus());
}

TEST(LoadNccl, LoadNccl_ReportsWhyLibraryIsUnavailable) {
  const auto fake = CreateFakeRuntime({.device_count = 2});
  ASSERT_TRUE(fake.ok()) << fake.status();
  EXPECT_EQ(LoadNccl(TENSORCAST_TEST_NCCL, fake->get()).status().code(), absl::StatusCode::kUnavailable);
  const auto devices = CreateCudaRuntime();
  if (!devices.ok()) GTEST_SKIP() << "no collective library: " << devices.status();
  const absl::Status missing = LoadNccl("/nowhere/libnccl.so.2", devices->get()).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(missing.message(), ::testing::HasSubstr("/nowhere/libnccl.so.2"));
  const absl::Status another = LoadNccl("libdl.so.2", devices->get()).status();
  EXPECT_EQ(another.code(), absl::StatusCode::kUnavailable) << another;
}

}  // namespace
}  // namespace tensorcast

int main(int argc, char** argv) {
  if (argc == 7 && std::string_view(argv[1]) == tensorcast::kRoleFlag) return tensorcast::MainOfRank(argv);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
