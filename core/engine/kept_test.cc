// Replicas that the previous daemon left in memory.
#include "core/replicas/kept_replicas.h"

#include <algorithm>
#include <span>

#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"

namespace tensorcast::testing::kept_test {
namespace {

class Kept : public EngineFixture {
 protected:
  // In memory of the pool as it is, which the engine cannot tell from an adopted one's.
  KeptReplica Keep(const TestArtifact& artifact) {
    auto memory = pool_->Allocate(artifact.image.size());
    EXPECT_TRUE(memory.ok()) << memory.status();
    std::span<const std::byte> rest = artifact.image;
    for (const HostSpan& span : memory->Spans(0, artifact.image.size())) {
      std::ranges::copy(rest.first(span.size()), span.begin());
      rest = rest.subspan(span.size());
    }
    return {artifact.manifest, *std::move(memory)};
  }
  void Adopt(std::vector<KeptReplica> replicas) {
    engine_->Adopt(std::move(replicas),
                   [this](const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease) {
                     absl::MutexLock lock(&mutex_);
                     if (lease == nullptr) lost_.push_back(artifact_id);
                   });
  }
  std::vector<std::string> AwaitLost() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this] { return !lost_.empty(); };
    mutex_.Await(absl::Condition(&any));
    return lost_;
  }
  static std::vector<KeptReplica> Only(KeptReplica replica) {
    std::vector<KeptReplica> all;
    all.push_back(std::move(replica));
    return all;
  }

  absl::Mutex mutex_;
  std::vector<std::string> lost_;  // guarded by mutex_
};

TEST_F(Kept, KeptReplica_IsReadyAtEveryLocationWithoutSource) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(1, {3 << 20, 100});
  Adopt(Only(Keep(artifact)));
  for (const Location& location : {kCpu, kGpu, kDisk}) {
    const auto lease = Get(artifact, location);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(Read(**lease), artifact.image);
  }
  EXPECT_TRUE(lost_.empty());
}

TEST_F(Kept, KeptReplica_MakesItsManifestKnownAtOnce) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(1, {3 << 20});
  Adopt(Only(Keep(artifact)));
  const auto manifest = engine_->FindManifest(artifact.manifest->id());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ((*manifest)->id(), artifact.manifest->id());
}

TEST_F(Kept, KeptReplicaWithWrongBytes_IsDroppedAndItsMemoryFreed) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(1, {3 << 20});
  KeptReplica wrong = Keep(artifact);
  wrong.memory.Spans(2'000'000, 1).front()[0] ^= std::byte{4};
  const uint64_t staging = pool_->stats().used_bytes - 2 * kGranuleBytes;
  Adopt(Only(std::move(wrong)));
  EXPECT_EQ(AwaitLost(), std::vector<std::string>{artifact.manifest->id()});
  EXPECT_FALSE(Get(artifact, kCpu).ok());
  EXPECT_TRUE(engine_->ListReplicas().empty());
  EXPECT_TRUE(Eventually([&] { return pool_->stats().used_bytes == staging; }));
  EXPECT_EQ(Read(*MustGet(artifact, kCpu)), artifact.image) << "it comes from elsewhere";
}

// Memory that processes still map is taken over when the replica is settled, so it must not be free by then.
TEST_F(Kept, KeptReplicaWithWrongBytes_IsSettledWhileItsMemoryIsHeld) {
  Start();
  KeptReplica wrong = Keep(MakeTestArtifact(1, {3 << 20}));
  wrong.memory.Spans(2'000'000, 1).front()[0] ^= std::byte{4};
  const uint64_t held = pool_->stats().used_bytes;
  uint64_t when_settled = 0;
  absl::Notification settled;
  engine_->Adopt(Only(std::move(wrong)), [&](const std::string&, std::unique_ptr<ReplicaLease> lease) {
    EXPECT_EQ(lease, nullptr);
    when_settled = pool_->stats().used_bytes;
    settled.Notify();
  });
  settled.WaitForNotification();
  EXPECT_EQ(when_settled, held);
}

TEST_F(Kept, KeptReplicas_AreEvictedToMakeRoom) {
  Start();
  std::vector<KeptReplica> all;
  for (uint64_t seed = 1; seed <= 16; ++seed) all.push_back(Keep(MakeTestArtifact(seed, {2 << 20})));
  Adopt(std::move(all));
  const TestArtifact large = MakeTestArtifact(20, {20 << 20});
  EXPECT_EQ(Read(*MustGet(large, kCpu)), large.image);
}

TEST_F(Kept, ForgottenKeptReplica_IsNotServed) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(1, {3 << 20});
  Adopt(Only(Keep(artifact)));
  // Compared by then or not.
  ASSERT_TRUE(engine_->Forget(artifact.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  EXPECT_FALSE(Get(artifact, kCpu).ok());
}

}  // namespace
}  // namespace tensorcast::testing::kept_test
