// What the stand-in for NCCL does with mistakes that NCCL would hang on or not notice, and what the product
// does with the faults that the stand-in has on demand.
#include <gmock/gmock.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/log/check.h"
#include "base/testing/eventually.h"
#include "collective/communicator.h"
#include "core/device/testing/device_bytes.h"
#include "tests/stand_ins/nccl/faults.h"

namespace tensorcast::stand_ins {
namespace {

using tensorcast::testing::Pattern;
using tensorcast::testing::Upload;

constexpr uint64_t kBytes = uint64_t{4} << 20;
constexpr absl::Duration kPlenty = absl::Seconds(60);

// Two ranks, each on the GPU of its number, by NCCL's own functions. Tests make it in a process of their own
// (EXPECT_DEATH).
class RawRanks {
 public:
  RawRanks() {
    CHECK_EQ(ncclGetUniqueId(&id_), ncclSuccess);
    ncclGroupStart();
    for (int rank = 0; rank < 2; ++rank) comms_[rank] = Init(rank, 2);
    ncclGroupEnd();
    for (int rank = 0; rank < 2; ++rank) {
      AwaitSuccess(rank);
      cudaSetDevice(rank);
      CHECK_EQ(cudaMalloc(&buffers_[rank], kBytes), cudaSuccess);
      CHECK_EQ(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking), cudaSuccess);
    }
  }

  ncclComm_t comm(int rank) const { return comms_[rank]; }

  ncclComm_t Init(int rank, int world) {
    cudaSetDevice(rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    CHECK_EQ(static_cast<int>(ncclCommInitRankConfig(&comm, world, id_, rank, &config)) & ~ncclInProgress, 0);
    return comm;
  }
  void Broadcast(int rank, uint64_t bytes, int root, ncclDataType_t type = ncclUint8) {
    ncclBroadcast(buffers_[rank], buffers_[rank], bytes, type, root, comms_[rank], streams_[rank]);
  }
  void AwaitSuccess(int rank) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ncclCommGetAsyncError(comms_[rank], &state);
    CHECK_EQ(state, ncclSuccess);
  }
  void Synchronize(int rank) {
    cudaSetDevice(rank);
    cudaStreamSynchronize(streams_[rank]);
  }
  void Free(int rank) {
    cudaSetDevice(rank);
    cudaFree(buffers_[rank]);
  }

 private:
  ncclUniqueId id_;
  ncclComm_t comms_[2];
  void* buffers_[2];
  cudaStream_t streams_[2];
};

class NcclStrictness : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NcclStrictness, RanksWithDifferentBroadcasts_KillProcess) {
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Broadcast(0, kBytes, 0);
        ranks.Broadcast(1, kBytes / 2, 0);
        for (const int rank : {0, 1}) ranks.AwaitSuccess(rank);
        ranks.Synchronize(0);
        ranks.Synchronize(1);
      },
      "nccl stand-in: collective 1 of rank . is .* elements of type .* from rank 0, that of rank");
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Broadcast(0, kBytes, 0);
        ranks.Broadcast(1, kBytes, 1);
        for (const int rank : {0, 1}) ranks.AwaitSuccess(rank);
        ranks.Synchronize(0);
        ranks.Synchronize(1);
      },
      "nccl stand-in: collective 1 of rank");
}

TEST_F(NcclStrictness, CallDuringAnotherCallOfSameRank_KillsProcess) {
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Broadcast(0, kBytes, 0);
        ranks.Broadcast(0, kBytes, 0);
      },
      "ncclBroadcast of rank 0 while a call before it is in progress");
}

TEST_F(NcclStrictness, AbortOfAbortedCommunicator_KillsProcess) {
  EXPECT_DEATH(
      {
        const RawRanks ranks;
        ncclCommAbort(ranks.comm(0));
        ncclCommAbort(ranks.comm(0));
      },
      "ncclCommAbort of a communicator that is not, or not any more");
}

TEST_F(NcclStrictness, DestroyWithoutFinalize_KillsProcess) {
  EXPECT_DEATH(
      {
        const RawRanks ranks;
        ncclCommDestroy(ranks.comm(0));
      },
      "rank 0 is destroyed before ncclCommFinalize is done");
}

TEST_F(NcclStrictness, RankThatJoinsTwiceOrWithOtherSize_KillsProcess) {
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Init(0, 2);
        pause();
      },
      "rank 0 joins twice");
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Init(2, 3);
        pause();
      },
      "rank 2 joins a communicator of 3 ranks, another rank one of 2");
}

TEST_F(NcclStrictness, FreeDuringBroadcast_KillsProcess) {
  EXPECT_DEATH(
      {
        RawRanks ranks;
        ranks.Broadcast(0, kBytes, 0);  // and rank 1 does not
        ranks.AwaitSuccess(0);
        ranks.Free(0);
      },
      "cuda stand-in: memory is given back while operation 1 of stream 1 reads");
}

// Ranks 0 and 1 of one process, by the product's code, with faults that the test switches. The stand-in reads
// its environment once, so all tests share the file.
class NcclFaultsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = new std::string(::testing::TempDir() + "/nccl-faults");
    setenv(kNcclFaultsVariable, path_->c_str(), 1);
    faults_ = new std::shared_ptr<NcclFaults>(OpenNcclFaults(*path_).value());
  }
  static void TearDownTestSuite() {
    unsetenv(kNcclFaultsVariable);
    unlink(path_->c_str());
    delete faults_;
    delete path_;
  }

  NcclFaultsTest() : devices_(CreateCudaRuntime().value()) {
    for (const int device : {0, 1}) {
      buffers_.push_back(devices_->Allocate(device, kBytes).value());
      CHECK_OK(Upload(*devices_, buffers_.back(), Pattern(1, kBytes)));
    }
  }
  ~NcclFaultsTest() override {
    for (const DevicePtr buffer : buffers_) {
      EXPECT_TRUE(devices_->Free(buffer).ok()) << "nothing uses it any more";
    }
  }

  static NcclFaults& faults() { return **faults_; }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(absl::Duration limit = kPlenty) {
    if (library_ == nullptr) library_ = LoadNccl(TENSORCAST_TEST_NCCL, devices_.get()).value();
    const std::vector<RankDevice> ranks = {{0, 0}, {1, 1}};
    return library_->Join(RequestContext::Background(limit), library_->MakeId().value(), 2, ranks);
  }
  absl::Status Broadcast(Communicator& communicator, const RequestContext& context) {
    const absl::Status status = communicator.Broadcast(context, 0, buffers_, kBytes);
    return status.ok() ? communicator.Await(context) : status;
  }

  const std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<CollectiveLibrary> library_;
  std::vector<DevicePtr> buffers_;

 private:
  static std::string* path_;
  static std::shared_ptr<NcclFaults>* faults_;
};

std::string* NcclFaultsTest::path_ = nullptr;
std::shared_ptr<NcclFaults>* NcclFaultsTest::faults_ = nullptr;

TEST_F(NcclFaultsTest, NcclTooOld_IsUnavailable) {
  faults().version = NCCL_VERSION(2, 17, 1);
  const absl::Status status = LoadNccl(TENSORCAST_TEST_NCCL, devices_.get()).status();
  faults().version = 0;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("older than 2.18"));
}

TEST_F(NcclFaultsTest, LateNcclError_EndsBroadcastWait) {
  const auto communicator = Join();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  faults().late_error = 1 << 1;
  const absl::Status status = Broadcast(**communicator, RequestContext::Background(kPlenty));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(faults().late_error.load(), 0u) << "it has struck";
  EXPECT_EQ(faults().hanging.load(), 0u) << "it was aborted";
}

TEST_F(NcclFaultsTest, RankHangsInBroadcast_CancellationEndsIt) {
  const auto communicator = Join();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  faults().hang = 1 << 0;
  const RequestContext context = RequestContext::Background(kPlenty);
  absl::Status status;
  std::thread waits([&] { status = Broadcast(**communicator, context); });
  EXPECT_TRUE(tensorcast::testing::Eventually([] { return faults().hanging.load() == 1; }));
  context.cancellation.Cancel();
  waits.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(faults().hanging.load(), 0u) << "it was aborted";
  const auto another = Join();
  ASSERT_TRUE(another.ok()) << another.status();
  EXPECT_EQ(Broadcast(**another, RequestContext::Background(kPlenty)), absl::OkStatus());
}

TEST_F(NcclFaultsTest, RankHangsInBroadcast_AbortEndsIt) {
  const auto communicator = Join();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  faults().hang = 1 << 1;
  absl::Status status;
  std::thread waits([&] { status = Broadcast(**communicator, RequestContext::Background(kPlenty)); });
  EXPECT_TRUE(tensorcast::testing::Eventually([] { return faults().hanging.load() == 2; }));
  (*communicator)->Abort();
  waits.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST_F(NcclFaultsTest, RankHangsWhileJoining_DeadlineEndsIt) {
  faults().hang_join = 1 << 1;
  EXPECT_EQ(Join(absl::Milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(faults().hanging.load(), 0u) << "it was aborted";
  EXPECT_TRUE(Join().ok());
}

}  // namespace
}  // namespace tensorcast::stand_ins
