// From GPU to GPU of one node, by the timeline of the stand-in's copy engines: without the host where the
// GPUs are peers, through it where they are not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "core/device/testing/device_bytes.h"
#include "core/device/testing/device_faults.h"
#include "core/engine/engine.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "tests/stand_ins/cuda/copy_engines.h"

namespace tensorcast::stand_ins {
namespace {

constexpr uint32_t kChunks = 12;
constexpr uint64_t kDigestBytes = 16;
constexpr uint64_t kDirectBytesPerSecond = uint64_t{64} << 20;

RequestContext Minute() { return RequestContext::Background(absl::Minutes(1)); }

class Direct : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv(kDeviceFaultsVariable, faults_path_.c_str(), 1);
    setenv(kTimelineVariable, timeline_path_.c_str(), 1);
    faults_ = OpenDeviceFaults(faults_path_).value();
    faults_->no_peers = false;
    faults_->bytes_per_second[static_cast<size_t>(CopyDirection::kOnDevice)] = 0;
  }

  // The process has them open from its first use of a GPU on.
  static void TearDownTestSuite() {
    unlink((::testing::TempDir() + "/direct-faults").c_str());
    unlink((::testing::TempDir() + "/direct-timeline").c_str());
  }

  // The model is on gpu:0, and the way from there to gpu:1 is what the timeline then shows.
  void StartWithModel() {
    devices_ = CreateCudaRuntime().value();
    pool_ = HostPool::Create({.bytes = uint64_t{64} << 20, .use_huge_pages = false, .prefault_threads = 0})
                .value();
    engine_ = StoreEngine::Create({.host_pool = pool_.get(),
                                   .devices = devices_.get(),
                                   .staging_buffers = 4,
                                   .staging_buffer_bytes = kMinChunkBytes})
                  .value();
    const auto control = tensorcast::testing::MakeControl(artifact_.image);
    Get(0, std::make_shared<tensorcast::testing::ScriptedProvider>(
               std::vector<std::shared_ptr<tensorcast::testing::SourceControl>>{control}));
    before_ = ReadTimeline(timeline_path_).value().size();
    // A chunk's copy takes as long as a thread that is woken needs to begin another, and longer.
    faults_->bytes_per_second[static_cast<size_t>(CopyDirection::kOnDevice)] = kDirectBytesPerSecond;
  }
  void Get(int gpu, std::shared_ptr<SourceProvider> sources) {
    auto pending = engine_->Ingest(Minute(), {.manifest = artifact_.manifest,
                                              .location = {LocationKind::kGpu, gpu},
                                              .sources = std::move(sources)});
    ASSERT_TRUE(pending.ok()) << pending.status();
    const auto lease = (*pending)->Wait(Minute());
    ASSERT_TRUE(lease.ok()) << lease.status();
    seen_ = ReadTimeline(timeline_path_).value();
    EXPECT_EQ(
        tensorcast::testing::Download(*devices_, (*lease)->memory().device, artifact_.image.size()).value(),
        artifact_.image);
  }
  uint64_t BytesOf(CopyDirection direction) const {
    uint64_t bytes = 0;
    for (size_t i = before_; i < seen_.size(); ++i) {
      bytes += seen_[i].direction == direction ? seen_[i].bytes : 0;
    }
    return bytes;
  }

  const std::string faults_path_ = ::testing::TempDir() + "/direct-faults";
  const std::string timeline_path_ = ::testing::TempDir() + "/direct-timeline";
  const tensorcast::testing::TestArtifact artifact_ =
      tensorcast::testing::MakeChunkedArtifact(1, kChunks, uint64_t{1} << 20);
  std::shared_ptr<DeviceFaults> faults_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<StoreEngine> engine_;
  size_t before_ = 0;                // entries of the timeline
  std::vector<TimelineEntry> seen_;  // at the end of the last get
};

TEST_F(Direct, CopyBetweenPeerGpus_OnlyDigestsReachHost) {
  StartWithModel();
  Get(1, nullptr);
  EXPECT_EQ(BytesOf(CopyDirection::kOnDevice), artifact_.image.size());
  EXPECT_EQ(BytesOf(CopyDirection::kToHost), kChunks * kDigestBytes);
  EXPECT_EQ(BytesOf(CopyDirection::kToDevice), 0u);
  std::set<uint64_t> streams;
  for (size_t i = before_; i < seen_.size(); ++i) streams.insert(seen_[i].stream);
  EXPECT_GT(streams.size(), 1u) << "several chunks under way";
}

TEST_F(Direct, GpusWithoutPeerAccess_CopyGoesThroughHost) {
  faults_->no_peers = true;
  StartWithModel();
  Get(1, nullptr);
  EXPECT_EQ(BytesOf(CopyDirection::kOnDevice), 0u);
  EXPECT_EQ(BytesOf(CopyDirection::kToHost), artifact_.image.size());
  EXPECT_EQ(BytesOf(CopyDirection::kToDevice), artifact_.image.size());
}

}  // namespace
}  // namespace tensorcast::stand_ins
