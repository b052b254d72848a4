// Copies between the host and devices: several under way at once, from where the bytes are, and no memory
// that goes before its copies.
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"

namespace tensorcast::testing::device_copies_test {
namespace {

class EngineDeviceCopies : public EngineFixture {
 protected:
  // Copies are held up from here on, until LetGo.
  void Hold() { faults_->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Hours(1)); }
  void LetGo() { faults_->copy_delay_ns = 0; }
  void AwaitHeldCopy() {
    ASSERT_TRUE(Eventually([this] { return faults_->delayed_copies > 0; }));
  }
  void AwaitFetches(const SourceControl& source, int fetches) {
    ASSERT_TRUE(Eventually([&] { return source.total_fetches() == fetches; }));
  }
  static uint64_t BytesOf(Stage stage, const TransferReport& report) {
    uint64_t bytes = 0;
    for (const StageReport& one : report.stages) bytes += one.stage == stage ? one.bytes : 0;
    return bytes;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(3, 12);
};

TEST_F(EngineDeviceCopies, HeldDeviceCopy_LetsFetchesFillAllStagingBuffers) {
  Setup setup;
  setup.staging_buffers = 4;
  Start(setup);
  Hold();
  const auto source = MakeControl(artifact_.image);
  const auto pending = Materialize(artifact_, kGpu, ProviderOf({source}));
  ASSERT_NO_FATAL_FAILURE(AwaitHeldCopy());
  AwaitFetches(*source, 4);
  EXPECT_EQ(faults_->delayed_copies, 1) << "one stream: the others come after it";
  LetGo();
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(Read(**lease), artifact_.image);
}

TEST_F(EngineDeviceCopies, CopyFromHostReplica_IsMadeByTheGpuAlone) {
  Start();
  (void)MustGet(artifact_, kCpu);
  // All staging buffers are another's.
  const TestArtifact other = MakeChunkedArtifact(4, 12);
  const auto held = MakeControl(other.image, {.held = true});
  const auto pending_other = Materialize(other, kGpu, ProviderOf({held}));
  held->WaitForHeldFetches(setup_.staging_buffers);
  const auto pending = Materialize(artifact_, {LocationKind::kGpu, 1}, nullptr);
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(Read(**lease), artifact_.image);
  EXPECT_EQ(BytesOf(Stage::kFetch, *pending->report()), artifact_.image.size()) << "by the GPU";
  EXPECT_EQ(BytesOf(Stage::kVerify, *pending->report()), 0u) << "the host digested nothing";
  EXPECT_EQ(BytesOf(Stage::kPlace, *pending->report()), 0u);
  held->Release();
  EXPECT_TRUE(pending_other->Wait(ContextFor()).ok());
}

TEST_F(EngineDeviceCopies, CancelledIngest_AwaitsCopiesToDevice) {
  Start();
  Hold();
  const RequestContext context = ContextFor();
  auto pending = Materialize(artifact_, kGpu, GoodProvider(artifact_), context);
  ASSERT_NO_FATAL_FAILURE(AwaitHeldCopy());
  context.cancellation.Cancel();
  EXPECT_EQ(engine_->active_ingests(), 1) << "its memory is still written to";
  LetGo();
  EXPECT_EQ(pending->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
  WaitUntilIdle();
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
  EXPECT_TRUE(Get(artifact_, kGpu, GoodProvider(artifact_)).ok()) << "the next one works";
}

TEST_F(EngineDeviceCopies, FailedDeviceCopy_AwaitsOtherCopiesAndFreesMemory) {
  Setup setup;
  setup.staging_buffers = 4;
  Start(setup);
  Hold();
  const auto source = MakeControl(artifact_.image);
  const auto pending = Materialize(artifact_, kGpu, ProviderOf({source}));
  ASSERT_NO_FATAL_FAILURE(AwaitHeldCopy());
  AwaitFetches(*source, 4);
  faults_->fail_copies = 1;
  LetGo();
  EXPECT_EQ(pending->Wait(ContextFor()).status().code(), absl::StatusCode::kInternal);
  WaitUntilIdle();
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
  EXPECT_TRUE(Get(artifact_, kGpu, GoodProvider(artifact_)).ok()) << "the next one works";
}

TEST_F(EngineDeviceCopies, CancelledIngest_AwaitsCopiesToHost) {
  Start();
  (void)MustGet(artifact_, kGpu);
  Hold();
  const RequestContext context = ContextFor();
  auto pending = Materialize(artifact_, kCpu, nullptr, context);
  ASSERT_NO_FATAL_FAILURE(AwaitHeldCopy());
  context.cancellation.Cancel();
  EXPECT_EQ(engine_->active_ingests(), 1) << "its memory is still written to";
  LetGo();
  EXPECT_EQ(pending->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
  WaitUntilIdle();
  EXPECT_TRUE(Get(artifact_, kCpu, nullptr).ok()) << "the next one works";
}

}  // namespace
}  // namespace tensorcast::testing::device_copies_test
