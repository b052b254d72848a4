// What the engine counts, by metric and label.

#include "base/steady_time.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::testing::counts_test {
namespace {

namespace metrics = otel::metrics;
using otel::testing::RecordedTelemetry;
using ::testing::SizeIs;

class EngineCounts : public EngineFixture {
 protected:
  double Evictions(const char* location, const char* reason) const {
    return recorded_.Sum(metrics::kPoolEvictions.id(), {location, reason});
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, 2);
  const TestArtifact other_ = MakeChunkedArtifact(2, 2);
  RecordedTelemetry recorded_;
};

TEST_F(EngineCounts, TransfersCreated_CountsIngestsButNotSharedRequests) {
  Start();
  for (const Location location : {kCpu, kGpu, kDisk, kCpu}) MustGet(artifact_, location);
  for (const char* location : {"cpu", "gpu", "disk"}) {
    EXPECT_EQ(recorded_.Sum(metrics::kTransfersCreated.id(), {location}), 1) << location;
  }
}

TEST_F(EngineCounts, Evictions_AreCountedByReason) {
  Setup setup;
  setup.host_granules = 1;
  Start(setup);
  MustGet(artifact_, kCpu);
  MustGet(other_, kCpu);
  EXPECT_EQ(Evictions("cpu", "space"), 1);

  const std::string replica_id = MustGet(other_, kCpu)->replica_id();
  {
    auto lease = engine_->LeaseReplica(replica_id);
    ASSERT_TRUE(lease.ok());
    EXPECT_TRUE(engine_->Evict(replica_id, /*force=*/true).ok());
    EXPECT_TRUE(engine_->Evict(replica_id, /*force=*/true).ok()) << "it drains already";
  }
  EXPECT_EQ(Evictions("cpu", "request"), 1);

  MustGet(artifact_, kCpu);
  MustGet(artifact_, kGpu);
  ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  EXPECT_EQ(Evictions("cpu", "deleted"), 1);
  EXPECT_EQ(Evictions("gpu", "deleted"), 1);
  EXPECT_EQ(Evictions("cpu", "space"), 1) << "each is counted once";
  EXPECT_EQ(engine_->replica_bytes(kCpu).evictions, 3u) << "of every reason";
  EXPECT_EQ(engine_->replica_bytes(kGpu).evictions, 1u);
  EXPECT_EQ(engine_->replica_bytes(kDisk).evictions, 0u);
}

TEST_F(EngineCounts, CorruptReplica_IsCountedAndReported) {
  Start();
  {
    const auto lease = MustGet(artifact_, kCpu);
    lease->memory().host->Spans(0, 1).front()[0] ^= std::byte{1};
  }
  auto lease = Get(artifact_, kGpu, GoodProvider(artifact_));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(Evictions("cpu", "corrupt"), 1);
  listener_->WaitForReports(2);
  const TransferReport report = listener_->reports()[1];
  ASSERT_THAT(report.changes, SizeIs(1));
  EXPECT_EQ(report.changes[0].from.lane, "memory");
  EXPECT_EQ(report.changes[0].why, SourceLoss::kBadDigest);
}

TEST_F(EngineCounts, UnopenedSource_IsInTransferReport) {
  // Names a source that could not be opened beside the one that it gives.
  class Provider final : public SourceProvider {
   public:
    explicit Provider(std::shared_ptr<SourceProvider> good) : good_(std::move(good)) {}
    absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                     bool needed) override {
      return good_->Next(context, ended, needed);
    }
    std::vector<SourceFailure> TakeUnopened() override {
      return {{.source = {SourceType::kLocal, "local", "a"}, .status = absl::UnavailableError("no socket")}};
    }

   private:
    const std::shared_ptr<SourceProvider> good_;
  };
  Start();
  ASSERT_TRUE(Get(artifact_, kCpu, std::make_shared<Provider>(GoodProvider(artifact_))).ok());
  listener_->WaitForReports(1);
  const TransferReport report = listener_->reports()[0];
  ASSERT_THAT(report.changes, SizeIs(1));
  EXPECT_EQ(report.changes[0].from.name, "a");
  EXPECT_EQ(SourceLossName(report.changes[0].why), "not_opened");
  EXPECT_EQ(report.changes[0].chunks, 0u);
  EXPECT_EQ(report.refetched_chunks, 0u);
}

}  // namespace
}  // namespace tensorcast::testing::counts_test
