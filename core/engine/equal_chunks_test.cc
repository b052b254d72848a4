// Chunks that other artifacts have in this node's host memory: which are copied from there, and what becomes
// of the rest.
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "base/status.h"
#include "base/testing/eventually.h"
#include "core/artifact/test_util.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::equal_chunks_test {
namespace {

using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kChunkBytes = 4096;
constexpr uint32_t kChunks = 12;

class EqualChunksTest : public EngineFixture {
 protected:
  // Of the bytes that the image has by now.
  static void Seal(TestArtifact& artifact, const std::string& version) {
    auto manifest =
        Manifest::Create(artifact.layout, DigestsOf(artifact.layout, artifact.image), {{"version", version}});
    CHECK_OK(manifest.status());
    artifact.manifest = *std::move(manifest);
  }
  // With other bytes in these chunks.
  static TestArtifact FineTuned(TestArtifact artifact, const std::vector<uint32_t>& changed) {
    for (const uint32_t chunk : changed) artifact.image[chunk * kChunkBytes] ^= std::byte{1};
    Seal(artifact, "fine-tuned");
    return artifact;
  }
  static std::shared_ptr<SourceControl> Far(const TestArtifact& artifact, bool held = false) {
    return MakeControl(artifact.image, {.name = "far", .type = SourceType::kRemote, .held = held});
  }
  void HaveInHostMemory(const TestArtifact& artifact) {
    MustGet(artifact, kCpu);
    WaitUntilIdle();
  }
  TransferReport LastReport() {
    WaitUntilIdle();
    return listener_->reports().back();
  }
  static std::vector<SourceReport> EqualSources(const TransferReport& report) {
    std::vector<SourceReport> equal;
    for (const SourceReport& source : report.sources) {
      if (source.source.lane == kEqualLane) equal.push_back(source);
    }
    return equal;
  }
  // Without an id: there is none.
  ReplicaInfo ReplicaOf(const TestArtifact& artifact) const {
    for (const ReplicaInfo& replica : engine_->ListReplicas()) {
      if (replica.artifact_id == artifact.manifest->id()) return replica;
    }
    return {};
  }

  const TestArtifact base_ = MakeChunkedArtifact(1, kChunks, kChunkBytes);
  const TestArtifact tuned_ = FineTuned(base_, {3, 7});
};

TEST_F(EqualChunksTest, FineTunedModel_PullsOnlyChangedChunks) {
  Start();
  for (const Location location : {kCpu, kGpu, kDisk}) {
    Restart();
    HaveInHostMemory(base_);
    auto far = Far(tuned_);
    auto lease = Get(tuned_, location, ProviderOf({far}));
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == tuned_.image);
    EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(3U), Key(7U)));
    const TransferReport report = LastReport();
    EXPECT_EQ(report.verified_chunks, kChunks);
    ASSERT_THAT(EqualSources(report), SizeIs(1));
    const SourceReport equal = EqualSources(report)[0];
    EXPECT_EQ(equal.source.name, base_.manifest->id());
    EXPECT_EQ(equal.source.replica_id, ReplicaOf(base_).id);
    EXPECT_EQ(equal.chunks, kChunks - 2);
    EXPECT_EQ(equal.bytes, (kChunks - 2) * kChunkBytes);
    EXPECT_EQ(equal.loss, std::nullopt);
    lease->reset();
    ASSERT_TRUE(engine_->Forget(tuned_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  }
}

// An embedding of eight chunks and layers of twelve behind it.
TEST_F(EqualChunksTest, ResizedEmbedding_CopiesWhatIsStillEqual) {
  const TestArtifact base = MakeTestArtifact(1, {8 * kChunkBytes, 12 * kChunkBytes}, kChunkBytes);
  Start();
  struct Case {
    uint64_t more_bytes;  // of the embedding
    uint32_t equal_chunks;
  };
  for (const Case& resized : {Case{kChunkBytes / 2, 8}, Case{2 * kChunkBytes, 8 + 12}}) {
    SCOPED_TRACE(resized.more_bytes);
    const uint64_t embedding = 8 * kChunkBytes + resized.more_bytes;
    TestArtifact larger = MakeTestArtifact(2, {embedding, 12 * kChunkBytes}, kChunkBytes);
    std::memcpy(larger.image.data(), base.image.data(), 8 * kChunkBytes);
    std::memcpy(larger.image.data() + embedding, base.image.data() + 8 * kChunkBytes, 12 * kChunkBytes);
    Seal(larger, "resized");
    Restart();
    HaveInHostMemory(base);
    auto far = Far(larger);
    auto lease = Get(larger, kCpu, ProviderOf({far}));
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == larger.image);
    const TransferReport report = LastReport();
    ASSERT_THAT(EqualSources(report), SizeIs(1));
    EXPECT_EQ(EqualSources(report)[0].chunks, resized.equal_chunks);
    EXPECT_EQ(far->total_fetches(), static_cast<int>(larger.layout.chunk_count() - resized.equal_chunks));
    lease->reset();
  }
}

TEST_F(EqualChunksTest, SameImageUnderOtherName_NeedsNoOtherSource) {
  Start();
  HaveInHostMemory(base_);
  const TestArtifact renamed = FineTuned(base_, {});
  ASSERT_NE(renamed.manifest->id(), base_.manifest->id());
  auto provider = ProviderOf({Far(renamed)});
  auto lease = Get(renamed, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == renamed.image);
  EXPECT_EQ(provider->calls(), 0);
}

TEST_F(EqualChunksTest, SeveralOthers_EachGivesWhatOnlyItHas) {
  Start();
  HaveInHostMemory(base_);
  HaveInHostMemory(tuned_);
  TestArtifact merged = FineTuned(base_, {5});
  std::memcpy(merged.image.data() + 7 * kChunkBytes, tuned_.image.data() + 7 * kChunkBytes, kChunkBytes);
  Seal(merged, "merged");
  auto far = Far(merged);
  auto lease = Get(merged, kCpu, ProviderOf({far}));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == merged.image);
  EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(5U)));
  const std::vector<SourceReport> equal = EqualSources(LastReport());
  ASSERT_THAT(equal, SizeIs(2));
  EXPECT_EQ(equal[0].chunks + equal[1].chunks, kChunks - 1);
}

TEST_F(EqualChunksTest, CorruptReplica_IsWithdrawnAndItsChunksComeFromElsewhere) {
  Start();
  HaveInHostMemory(base_);
  MustGet(base_, kCpu)->memory().host->Spans(2 * kChunkBytes, 1).front()[0] ^= std::byte{1};
  auto far = Far(tuned_);
  auto lease = Get(tuned_, kCpu, ProviderOf({far}));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == tuned_.image);
  EXPECT_TRUE(far->fetches().contains(2U));
  const TransferReport report = LastReport();
  ASSERT_THAT(EqualSources(report), SizeIs(1));
  EXPECT_EQ(EqualSources(report)[0].loss, SourceLoss::kBadDigest);
  EXPECT_EQ(report.verified_chunks, kChunks);
  EXPECT_EQ(ReplicaOf(base_).id, "") << "it is withdrawn";
}

TEST_F(EqualChunksTest, ReplicaEvictedWhileCopied_IsReadToItsEnd) {
  Start();
  HaveInHostMemory(base_);
  faults_->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Hours(1));
  auto far = Far(tuned_);
  auto pending = Materialize(tuned_, kGpu, ProviderOf({far}));
  ASSERT_TRUE(Eventually([this] { return faults_->delayed_copies > 0; }));
  ASSERT_TRUE(engine_->Evict(ReplicaOf(base_).id, /*force=*/false).ok());
  EXPECT_EQ(ReplicaOf(base_).state, ReplicaState::kDraining) << "it is leased";
  faults_->copy_delay_ns = 0;
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == tuned_.image);
  ASSERT_THAT(EqualSources(LastReport()), SizeIs(1));
  EXPECT_EQ(EqualSources(LastReport())[0].loss, std::nullopt);
}

TEST_F(EqualChunksTest, AllCopied_LeaseEndsBeforeTransfer) {
  Start();
  HaveInHostMemory(base_);
  auto far = Far(tuned_, /*held=*/true);
  auto pending = Materialize(tuned_, kCpu, ProviderOf({far}));
  ASSERT_TRUE(Eventually([&] { return pending->progress().bytes_done > 0 && ReplicaOf(base_).leases == 0; }));
  EXPECT_EQ(pending->progress().bytes_done, (kChunks - 2) * kChunkBytes);
  far->Release();
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == tuned_.image);
}

TEST_F(EqualChunksTest, RestIsNowhere_TransferFailsAtOnce) {
  Start();
  HaveInHostMemory(base_);
  EXPECT_EQ(Get(tuned_, kGpu).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EqualChunksTest, OtherModel_IsNotASource) {
  Start();
  HaveInHostMemory(MakeChunkedArtifact(2, kChunks, kChunkBytes));
  auto lease = Get(tuned_, kCpu, ProviderOf({Far(tuned_)}));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(EqualSources(LastReport()), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::testing::equal_chunks_test
