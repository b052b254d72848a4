#include "core/ingest/chunk_path.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/device/direct_copies.h"
#include "core/device/fake_device.h"
#include "core/ingest/staging_ring.h"
#include "core/replicas/device_pool.h"
#include "core/testing/test_artifact.h"
#include "gtest/gtest.h"

namespace tensorcast::chunk_path_test {
namespace {

using Next = PathStep::Next;
using ::testing::Test;

constexpr uint32_t kChunks = 4;

// Never asked for bytes: the tests put them where a fetch would.
class Source final : public ChunkSource {
 public:
  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return 1; }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext&, const ChunkRequest&) override {
    return absl::UnimplementedError("not here");
  }
  std::vector<ConstHostSpan> HostSpans(ByteRange range) const override {
    if (host.empty()) return {};
    return {ConstHostSpan(host).subspan(range.offset, range.bytes)};
  }
  bool lends_host_memory() const override { return lends && !host.empty(); }
  DevicePtr device_image() const override { return image; }
  absl::Status PrepareDevice(DevicePtr, uint64_t) override {
    return writes_to_device
               ? absl::OkStatus()
               : absl::UnimplementedError("fetch to a GPU: this source writes to host memory only");
  }

  std::vector<std::byte> host;  // page-locked memory of this node
  bool lends = true;            // for a GPU that digests
  DevicePtr image;
  bool writes_to_device = false;

 private:
  const SourceInfo info_{SourceType::kRemote, "scripted", "node-b"};
};

class ChunkPathTest : public Test {
 protected:
  ChunkPathTest()
      : devices_(CreateFakeRuntime({.device_count = 2, .device_bytes = 64 << 20}).value()),
        host_(HostPool::Create({.bytes = 8 * kGranuleBytes, .use_huge_pages = false, .prefault_threads = 0})
                  .value()),
        pool_(devices_.get(), 16 * kGranuleBytes),
        staging_(StagingRing::Create(host_.get(), 1, 4096).value()),
        direct_(devices_.get()) {}

  void BringToHost() {
    destination_ = MakeHostDestination(host_->Allocate(artifact_.image.size()).value());
    Start();
  }
  void BringToGpu(bool distrust_other_hosts = false) {
    auto memory = std::make_shared<const DeviceBlock>(pool_.Allocate(0, artifact_.image.size()).value());
    destination_ = MakeDeviceDestination(devices_.get(), std::move(memory), staging_.get(), &direct_);
    plan_.distrust_other_hosts = distrust_other_hosts;
    Start();
  }
  // One source with its path, and a fetch of a chunk of it.
  ChunkFetch& Take(uint32_t chunk, std::unique_ptr<Source> source) {
    in_use_ = std::make_unique<SourceInUse>();
    in_use_->path = paths_->Choose(*source);
    in_use_->clock = std::make_shared<StageClock>(source->info());
    in_use_->source = std::move(source);
    fetch_ = std::make_unique<ChunkFetch>();
    fetch_->source = in_use_.get();
    fetch_->path = in_use_->path;
    fetch_->request.chunk = chunk;
    fetch_->request.range = artifact_.layout.chunk(chunk);
    fetch_->digests = std::nullopt;
    return *fetch_;
  }
  // As a source does.
  void Deliver(ChunkFetch& fetch) {
    const ByteRange range = fetch.request.range;
    uint64_t offset = range.offset;
    for (const HostSpan& span : fetch.request.destination) {
      std::memcpy(span.data(), artifact_.image.data() + offset, span.size());
      offset += span.size();
    }
    if (fetch.request.device) Write(fetch.request.device, range);
  }
  void Write(DevicePtr to, ByteRange range) {
    const auto stream = devices_->CreateStream(to.device).value();
    ASSERT_TRUE(stream->CopyToDevice(to, artifact_.image.data() + range.offset, range.bytes).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  }
  std::unique_ptr<Source> OnOtherGpu() {
    auto source = std::make_unique<Source>();
    other_ = pool_.Allocate(1, artifact_.image.size()).value();
    source->image = other_.pointer();
    Write(source->image, {0, artifact_.image.size()});
    return source;
  }

  testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(3, kChunks);
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<HostPool> host_;
  DevicePool pool_;
  std::unique_ptr<StagingRing> staging_;
  DirectCopies direct_;
  DeviceBlock other_;
  std::unique_ptr<Destination> destination_;
  IngestPlan plan_;
  std::optional<ChunkVerifier> verifier_;
  std::optional<ChunkPaths> paths_;
  std::unique_ptr<SourceInUse> in_use_;
  std::unique_ptr<ChunkFetch> fetch_;  // before its source and the destination

 private:
  void Start() {
    plan_.subject = artifact_.manifest->id();
    plan_.layout = &artifact_.layout;
    plan_.expected = artifact_.manifest.get();
    plan_.destination = destination_.get();
    plan_.context = [] { return RequestContext(); };
    verifier_.emplace(&artifact_.layout, plan_.expected, plan_.distrust_other_hosts);
    paths_.emplace(plan_, &*verifier_);
  }
};

TEST_F(ChunkPathTest, HostReplica_IsFilledInPlace) {
  BringToHost();
  ChunkFetch& fetch = Take(1, std::make_unique<Source>());
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kFetch);
  EXPECT_EQ(fetch.request.destination[0].data(),
            destination_->memory().host->Spans(fetch.request.range.offset, 1)[0].data());
  Deliver(fetch);
  EXPECT_EQ(fetch.path->Arrived(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, WrongBytes_AreTheFaultOfTheSource) {
  BringToHost();
  ChunkFetch& fetch = Take(1, std::make_unique<Source>());
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kFetch);
  const PathStep step = fetch.path->Arrived(fetch);
  EXPECT_EQ(step.next, Next::kWrong);
  EXPECT_EQ(step.status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChunkPathTest, ChunkForGpu_IsStagedAndThenCopied) {
  BringToGpu();
  ChunkFetch& fetch = Take(2, std::make_unique<Source>());
  EXPECT_EQ(fetch.path->fallback(), nullptr);
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kFetch);
  Deliver(fetch);
  ASSERT_EQ(fetch.path->Arrived(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, MissingBuffer_IsNotTheFaultOfTheSource) {
  BringToGpu();
  const StagingBuffer taken = staging_->Acquire(RequestContext()).value();
  ChunkFetch& fetch = Take(2, std::make_unique<Source>());
  fetch.context.cancellation.Cancel();
  EXPECT_EQ(fetch.path->Begin(fetch).next, Next::kNoBuffer);
}

TEST_F(ChunkPathTest, ChunkInPageLockedMemory_IsUploadedAndDigestedInItsPlace) {
  BringToGpu();
  const StagingBuffer taken = staging_->Acquire(RequestContext()).value();
  auto source = std::make_unique<Source>();
  source->host = artifact_.image;
  ChunkFetch& fetch = Take(2, std::move(source));
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, WrongBytesInPageLockedMemory_AreFoundInTheirPlace) {
  BringToGpu();
  auto source = std::make_unique<Source>();
  source->host = artifact_.image;
  source->host[artifact_.layout.chunk(2).offset] ^= std::byte{1};
  ChunkFetch& fetch = Take(2, std::move(source));
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kWrong);
}

TEST_F(ChunkPathTest, ChunkInHostMemoryThatIsVerifiedThere_NeedsNoBuffer) {
  BringToGpu();
  const StagingBuffer taken = staging_->Acquire(RequestContext()).value();
  auto source = std::make_unique<Source>();
  source->host = artifact_.image;
  source->lends = false;
  ChunkFetch& fetch = Take(2, std::move(source));
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kFetched);
  ASSERT_EQ(fetch.path->Arrived(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, ChunkOnOtherGpu_IsCopiedWithoutBuffer) {
  BringToGpu();
  const StagingBuffer taken = staging_->Acquire(RequestContext()).value();
  ChunkFetch& fetch = Take(3, OnOtherGpu());
  EXPECT_GE(fetch.path->max_chunks(), DirectCopies::kAtOnce);
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, WrongBytesOnOtherGpu_AreFoundInTheirPlace) {
  BringToGpu();
  auto source = OnOtherGpu();
  const ByteRange other_chunk = artifact_.layout.chunk(0);
  Write(source->image + artifact_.layout.chunk(3).offset, other_chunk);
  ChunkFetch& fetch = Take(3, std::move(source));
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kWrong);
}

TEST_F(ChunkPathTest, ChunkThatOtherGpuLacks_IsRequestedThroughHost) {
  BringToGpu();
  ChunkFetch& fetch = Take(3, OnOtherGpu());
  in_use_->availability =
      std::make_shared<Availability>(artifact_.layout.image_bytes, artifact_.layout.chunk_bytes);
  EXPECT_EQ(fetch.path->Begin(fetch).next, Next::kFetch);
  EXPECT_EQ(fetch.path, in_use_->path->fallback());
  EXPECT_FALSE(fetch.request.destination.empty());
}

TEST_F(ChunkPathTest, SourceThatWritesToGpu_IsGivenThePlaceItself) {
  BringToGpu();
  auto source = std::make_unique<Source>();
  source->writes_to_device = true;
  ChunkFetch& fetch = Take(1, std::move(source));
  ASSERT_EQ(fetch.path->Begin(fetch).next, Next::kFetch);
  EXPECT_EQ(fetch.request.device, destination_->memory().device->pointer() + fetch.request.range.offset);
  Deliver(fetch);
  ASSERT_EQ(fetch.path->Arrived(fetch).next, Next::kAwait);
  EXPECT_EQ(fetch.path->Await(fetch).next, Next::kPlaced);
}

TEST_F(ChunkPathTest, DistrustedHost_DoesNotWriteToGpu) {
  BringToGpu(/*distrust_other_hosts=*/true);
  auto source = std::make_unique<Source>();
  source->writes_to_device = true;
  const ChunkFetch& fetch = Take(1, std::move(source));
  EXPECT_EQ(fetch.path->fallback(), nullptr) << "a GPU computes no BLAKE3";
}

}  // namespace
}  // namespace tensorcast::chunk_path_test
