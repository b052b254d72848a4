// Random operations from many threads on pools that are too small for all of it. What must hold throughout: a
// lease's bytes are the artifact's, and nothing is left when all is over.
#include <random>
#include <thread>

#include "base/steady_time.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::stress_test {
namespace {

class EngineStress : public EngineFixture {
 protected:
  static constexpr int kThreads = 6;
  static constexpr int kStepsEach = 200;
  static constexpr int kArtifacts = 5;

  EngineStress() {
    for (uint64_t seed = 0; seed < kArtifacts; ++seed) {
      artifacts_.push_back(MakeTestArtifact(seed, {300'000 * (1 + seed), 100, 3000 * seed}));
    }
  }

  std::shared_ptr<SourceProvider> RandomProvider(const TestArtifact& artifact, std::mt19937& random) {
    SourceScript bad;
    bad.max_concurrency = 1 + static_cast<int>(random() % 4);
    bad.deliver_digests = random() % 2 == 0;
    const uint32_t chunk = random() % artifact.layout.chunk_count();
    (random() % 2 == 0 ? bad.failing_chunks : bad.corrupt_chunks).insert(chunk);
    std::vector<std::shared_ptr<SourceControl>> controls;
    if (random() % 3 == 0) controls.push_back(MakeControl(artifact.image, bad));
    if (random() % 8 != 0) controls.push_back(MakeControl(artifact.image));
    return ProviderOf(std::move(controls));
  }

  static Location RandomLocation(std::mt19937& random) {
    const Location all[] = {kCpu, kCpu, kGpu, {LocationKind::kGpu, 1}, kDisk};
    return all[random() % 5];
  }

  void Use(const absl::StatusOr<std::unique_ptr<ReplicaLease>>& lease, const TestArtifact& artifact) {
    if (!lease.ok()) return;
    EXPECT_EQ((*lease)->manifest()->id(), artifact.manifest->id());
    EXPECT_TRUE(Read(**lease) == artifact.image);
  }

  // Some chunks, to the end or not.
  void Choose(const TestArtifact& artifact, std::mt19937& random) {
    std::vector<uint32_t> chunks;
    for (uint32_t chunk = 0; chunk < artifact.layout.chunk_count(); ++chunk) {
      if (random() % 3 == 0) chunks.push_back(chunk);
    }
    auto pending =
        engine_->Ingest(ContextFor(absl::Milliseconds(200)), {.manifest = artifact.manifest,
                                                              .location = kCpu,
                                                              .sources = RandomProvider(artifact, random),
                                                              .chunks = chunks});
    if (!pending.ok() || random() % 4 == 0) return;
    const auto lease = (*pending)->Wait(ContextFor(absl::Milliseconds(200)));
    if (!lease.ok()) return;
    for (const uint32_t chunk : chunks) {
      EXPECT_TRUE((*lease)->availability() == nullptr || (*lease)->availability()->Has(chunk));
      const ByteRange range = artifact.layout.chunk(chunk);
      auto at = artifact.image.begin() + static_cast<ptrdiff_t>(range.offset);
      for (const ConstHostSpan span : (*lease)->HostSpans(range.offset, range.bytes)) {
        EXPECT_TRUE(std::equal(span.begin(), span.end(), at));
        at += static_cast<ptrdiff_t>(span.size());
      }
    }
  }

  void Step(std::mt19937& random) {
    const TestArtifact& artifact = artifacts_[random() % kArtifacts];
    const Location location = RandomLocation(random);
    switch (random() % 10) {
      case 0:
        (void)engine_->Forget(artifact.manifest->id(), SteadyTime::InfiniteFuture());
        return;
      case 1: {
        for (const ReplicaInfo& replica : engine_->ListReplicas()) {
          if (random() % 4 == 0) (void)engine_->Evict(replica.id, random() % 2 == 0);
        }
        return;
      }
      case 2:
        for (const ReplicaInfo& replica : engine_->ListReplicas()) {
          (void)engine_->SetPinned(replica.id, random() % 8 == 0);
        }
        return;
      case 3: {
        const RequestContext context;
        auto pending = Materialize(artifact, location, RandomProvider(artifact, random), context);
        context.cancellation.Cancel();
        return;
      }
      case 4:
        return Use(IngestFirst(artifact, location, GoodProvider(artifact)), artifact);
      case 5:
        return Use(engine_->LeaseArtifact(artifact.manifest->id(), location), artifact);
      case 6:
        return Choose(artifact, random);
      default: {
        std::shared_ptr<SourceProvider> sources = RandomProvider(artifact, random);
        const bool wait_for_space = random() % 2 == 0;
        auto pending = engine_->Ingest(ContextFor(absl::Milliseconds(200)),
                                       {artifact.manifest, location, std::move(sources), wait_for_space});
        if (!pending.ok()) return;  // on a machine so busy that the deadline has passed by now
        return Use((*pending)->Wait(ContextFor(absl::Milliseconds(200))), artifact);
      }
    }
  }

  std::vector<TestArtifact> artifacts_;
};

TEST_F(EngineStress, RandomEngineCalls_LeaveNoReplicasAndMemory) {
  Setup setup;
  setup.host_granules = 3;
  setup.device_pool_bytes = 2 * kGranuleBytes;
  setup.guard = true;
  Start(setup);
  guard_.Refuse(artifacts_[0].manifest->id());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      std::mt19937 random(i);
      for (int step = 0; step < kStepsEach; ++step) Step(random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntilIdle();
  for (const TestArtifact& artifact : artifacts_) {
    EXPECT_TRUE(engine_->Forget(artifact.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  }
  EXPECT_THAT(engine_->ListReplicas(), ::testing::IsEmpty());
  EXPECT_EQ(pool_->stats().used_bytes, setup.staging_buffers * kGranuleBytes);
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
  EXPECT_EQ(engine_->device_pool_stats(1).used_bytes, 0u);
  EXPECT_THAT(store_->List(), ::testing::IsEmpty());
  Stop();
}

}  // namespace
}  // namespace tensorcast::testing::stress_test
