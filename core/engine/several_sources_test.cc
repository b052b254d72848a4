// One ingest from several sources at once: what each gives, which join and leave, and sources that fill yet.
#include <algorithm>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::several_sources_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kChunks = 12;

class EngineSources : public EngineFixture {
 protected:
  static std::shared_ptr<Availability> Nothing(const TestArtifact& artifact) {
    return std::make_shared<Availability>(artifact.layout.image_bytes, artifact.layout.chunk_bytes);
  }
  static std::shared_ptr<ScriptedProvider> Together(std::vector<std::shared_ptr<SourceControl>> controls) {
    return std::make_shared<ScriptedProvider>(std::vector<SourceBatch>{{std::move(controls)}});
  }
  TransferReport OnlyReport() {
    EXPECT_THAT(listener_->reports(), SizeIs(1));
    return listener_->reports().front();
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, kChunks);
};

TEST_F(EngineSources, SeveralSources_ShareTheChunks) {
  Start();
  for (const Location location : {kCpu, kGpu, kDisk}) {
    Restart();
    ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    const bool staged = location != kCpu;
    auto a = MakeControl(artifact_.image, {.name = "a", .max_concurrency = staged ? 1 : 2, .held = true});
    auto b = MakeControl(artifact_.image, {.name = "b", .max_concurrency = staged ? 1 : 2, .held = true});
    auto provider = Together({a, b});
    auto pending = Materialize(artifact_, location, provider);
    a->WaitForHeldFetches(staged ? 1 : 2);
    b->WaitForHeldFetches(staged ? 1 : 2);
    std::vector<std::string> in_use;
    for (const SourceReport& source : pending->progress().sources) in_use.push_back(source.source.name);
    EXPECT_THAT(in_use, ElementsAre("a", "b"));
    a->Release();
    b->Release();
    auto lease = pending->Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact_.image);
    EXPECT_EQ(a->total_fetches() + b->total_fetches(), static_cast<int>(kChunks));
    EXPECT_EQ(OnlyReport().verified_chunks, kChunks);
    EXPECT_THAT(OnlyReport().changes, IsEmpty());
    const TransferReport report = OnlyReport();
    ASSERT_THAT(report.sources, SizeIs(2));
    EXPECT_EQ(report.sources[0].bytes + report.sources[1].bytes, artifact_.layout.image_bytes);
    EXPECT_EQ(report.sources[0].chunks + report.sources[1].chunks, kChunks);
    for (const SourceReport& source : report.sources) {
      EXPECT_EQ(source.loss, std::nullopt);
      EXPECT_FALSE(source.filling);
      EXPECT_GT(source.asked, absl::ZeroDuration());
      EXPECT_LE(source.asked, report.fetching);
      EXPECT_LE(source.asked, source.left - source.joined);
    }
    EXPECT_THAT(provider->failures(), IsEmpty());
    EXPECT_EQ(provider->calls(), 1);
    EXPECT_EQ(a->open() + b->open(), 0);
  }
}

TEST_F(EngineSources, SourcesWithOwnThreads_ShareTheChunks) {
  Start();
  for (const Location location : {kCpu, kGpu}) {
    auto a = MakeControl(artifact_.image, {.name = "a", .own_thread = true});
    auto b = MakeControl(artifact_.image, {.name = "b", .own_thread = true, .failing_chunks = {3}});
    ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto lease = Get(artifact_, location, Together({a, b}));
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact_.image);
  }
}

TEST_F(EngineSources, SilentSource_IsOvertakenAndToldAtTheEnd) {
  Start();
  for (const bool own_thread : {false, true}) {
    auto slow = MakeControl(artifact_.image, {.name = "slow", .held = true, .own_thread = own_thread});
    auto fast = MakeControl(artifact_.image, {.name = "fast"});
    auto provider = Together({slow, fast});
    Restart();
    auto lease = Get(artifact_, kCpu, provider);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact_.image);
    EXPECT_GE(OnlyReport().reassigned_chunks, 1u);
    EXPECT_EQ(OnlyReport().sources[0].reassigned_chunks, OnlyReport().reassigned_chunks);
    EXPECT_EQ(OnlyReport().refetched_chunks, 0u);
    EXPECT_THAT(fast->fetches(), SizeIs(kChunks));
    EXPECT_EQ(OnlyReport().sources[0].loss, SourceLoss::kTimeout);
    EXPECT_EQ(OnlyReport().sources[1].loss, std::nullopt);
    EXPECT_THAT(OnlyReport().changes, IsEmpty());
    ASSERT_THAT(provider->failures(), SizeIs(1));
    EXPECT_EQ(provider->failures()[0].source.name, "slow");
    EXPECT_TRUE(absl::IsDeadlineExceeded(provider->failures()[0].status));
  }
}

// It took the only chunk before any source had given one, so that nothing was known of what is usual.
TEST_F(EngineSources, SilentSourceWithTheOnlyChunk_IsOvertaken) {
  const TestArtifact small = MakeChunkedArtifact(2, 1);
  Start();
  auto silent = MakeControl(small.image, {.name = "silent", .held = true, .own_thread = true});
  auto other = MakeControl(small.image, {.name = "other"});
  auto provider = std::make_shared<ScriptedProvider>(
      std::vector<SourceBatch>{{{silent}, absl::ZeroDuration()}, {{other}}});
  auto lease = Get(small, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == small.image);
  EXPECT_EQ(silent->total_fetches(), 1);
  EXPECT_EQ(OnlyReport().sources[0].loss, SourceLoss::kTimeout);
}

// Says when it is told that its sources stall, and gives the other one then.
class BetterWhenTold final : public SourceProvider {
 public:
  BetterWhenTold(std::shared_ptr<SourceControl> first, std::shared_ptr<SourceControl> better)
      : first_(std::move(first)), better_(std::move(better)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext&, std::span<const SourceFailure>,
                                   bool needed) override {
    MoreSources more;
    if (needed) more.sources.push_back(first_->MakeSource());
    if (!needed && std::exchange(stalled_, false)) more.sources.push_back(better_->MakeSource());
    return more;
  }
  bool NoteStall() override { return stalled_ = true; }
  void Finished(const absl::Status&, std::span<const SourceFailure> ended) override {
    for (const SourceFailure& failure : ended) overtaken_.push_back(failure.source.name);
  }

  std::vector<std::string> overtaken() const { return overtaken_; }

 private:
  const std::shared_ptr<SourceControl> first_;
  const std::shared_ptr<SourceControl> better_;
  bool stalled_ = false;
  std::vector<std::string> overtaken_;
};

TEST_F(EngineSources, SilentOnlySource_IsReplacedByBetterSource) {
  Start();
  auto silent = MakeControl(artifact_.image, {.name = "silent", .held = true, .own_thread = true});
  auto better = MakeControl(artifact_.image, {.name = "better"});
  auto provider = std::make_shared<BetterWhenTold>(silent, better);
  auto lease = Get(artifact_, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_THAT(better->fetches(), SizeIs(kChunks));
  lease->reset();
  WaitUntilIdle();
  EXPECT_THAT(provider->overtaken(), ElementsAre("silent"));
}

TEST_F(EngineSources, SourceWithWrongChunks_IsDroppedAndItsChunksRefetched) {
  Start();
  SourceScript lies{.name = "liar", .held = true};
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) lies.corrupt_chunks.insert(chunk);
  auto liar = MakeControl(artifact_.image, lies);
  auto honest = MakeControl(artifact_.image, {.name = "honest", .held = true});
  auto provider = Together({liar, honest});
  auto pending = Materialize(artifact_, kCpu, provider);
  liar->WaitForHeldFetches(2);
  honest->WaitForHeldFetches(2);
  liar->Release();
  EXPECT_TRUE(Eventually([&] { return !provider->failures().empty(); }));
  honest->Release();
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_THAT(honest->fetches(), SizeIs(kChunks));
  EXPECT_EQ(honest->total_fetches(), static_cast<int>(kChunks));
  EXPECT_EQ(honest->opened(), 1);
  EXPECT_EQ(liar->open(), 0);
  ASSERT_THAT(provider->failures(), SizeIs(1));
  const SourceFailure failure = provider->failures()[0];
  EXPECT_TRUE(failure.corrupt);
  EXPECT_GE(failure.chunks, 2u);
  EXPECT_EQ(failure.delivered, 0u);
  EXPECT_THAT(failure.status.message(), AllOf(HasSubstr("chunk "), HasSubstr("from test liar")));
  ASSERT_THAT(OnlyReport().changes, SizeIs(1));
  EXPECT_EQ(OnlyReport().changes[0].from.name, "liar");
  EXPECT_EQ(OnlyReport().changes[0].to.name, "honest");
  EXPECT_EQ(OnlyReport().changes[0].why, SourceLoss::kBadDigest);
  EXPECT_EQ(OnlyReport().refetched_chunks, failure.chunks);
  ASSERT_THAT(OnlyReport().sources, SizeIs(2));
  EXPECT_EQ(OnlyReport().sources[0].loss, SourceLoss::kBadDigest);
  EXPECT_EQ(OnlyReport().sources[0].lost_chunks, failure.chunks);
  EXPECT_EQ(OnlyReport().sources[0].bytes, 0u);
  EXPECT_LE(OnlyReport().sources[0].left, OnlyReport().sources[1].left);
}

TEST_F(EngineSources, DeadSource_LeavesItsChunksToOtherSources) {
  Start();
  auto dying = MakeControl(artifact_.image, {.name = "dying", .failing_chunks = {0, 1, 2, 3, 4, 5}});
  auto other = MakeControl(artifact_.image, {.name = "other", .max_concurrency = 1});
  auto provider = Together({dying, other});
  auto lease = Get(artifact_, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  // Told at the latest when the ingest ended.
  ASSERT_THAT(provider->failures(), SizeIs(1));
  EXPECT_EQ(provider->failures()[0].source.name, "dying");
  EXPECT_EQ(provider->failures()[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(provider->finished(), ElementsAre(absl::OkStatus()));
}

TEST_F(EngineSources, LateSource_JoinsRunningIngest) {
  Start();
  auto first = MakeControl(artifact_.image, {.name = "first", .max_concurrency = 1, .held = true});
  auto second = MakeControl(artifact_.image, {.name = "second", .max_concurrency = 1});
  auto provider = std::make_shared<ScriptedProvider>(std::vector<SourceBatch>{
      {.controls = {first}, .look_again = absl::ZeroDuration()}, {.controls = {second}}});
  auto pending = Materialize(artifact_, kCpu, provider);
  EXPECT_TRUE(Eventually([&] { return second->total_fetches() >= static_cast<int>(kChunks) - 1; }));
  first->Release();
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(provider->calls(), 2);
}

TEST_F(EngineSources, FillingSource_IsAskedOnlyForAvailableChunks) {
  Start();
  for (const Location location : {kCpu, kGpu}) {
    const std::shared_ptr<Availability> has = Nothing(artifact_);
    auto filling = MakeControl(artifact_.image, {.name = "filling", .availability = has});
    ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto pending = Materialize(artifact_, location, Together({filling}));
    for (uint32_t chunk = kChunks; chunk-- > 0;) {
      has->Add(chunk);
      EXPECT_TRUE(Eventually([&] { return filling->fetches().contains(chunk); })) << chunk;
    }
    has->End(absl::OkStatus());
    auto lease = pending->Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact_.image);
    EXPECT_EQ(filling->refused(), 0);
    EXPECT_EQ(filling->total_fetches(), static_cast<int>(kChunks));
    const TransferReport report = listener_->reports().back();
    ASSERT_THAT(report.sources, SizeIs(1));
    EXPECT_TRUE(report.sources[0].filling);
  }
}

TEST_F(EngineSources, RefusedFetch_IsRetriedWithoutBlamingSource) {
  Start();
  const std::shared_ptr<Availability> has = Nothing(artifact_);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) has->Add(chunk);
  auto filling =
      MakeControl(artifact_.image, {.name = "filling", .availability = has, .refusals = {{0, 3}, {7, 2}}});
  auto provider = Together({filling});
  auto lease = Get(artifact_, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(filling->refused(), 5);
  EXPECT_THAT(provider->failures(), IsEmpty());
  EXPECT_EQ(OnlyReport().refetched_chunks, 0u);
}

TEST_F(EngineSources, SourceThatRefusesAnnouncedChunks_IsGivenUp) {
  Start();
  const std::shared_ptr<Availability> has = Nothing(artifact_);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) has->Add(chunk);
  SourceScript script{.name = "empty", .availability = has};
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) script.refusals[chunk] = 1000;
  auto provider = ProviderOf({MakeControl(artifact_.image, script), MakeControl(artifact_.image)});
  EXPECT_TRUE(Get(artifact_, kCpu, provider).ok());
  ASSERT_THAT(provider->failures(), SizeIs(1));
  EXPECT_EQ(provider->failures()[0].source.name, "empty");
}

TEST_F(EngineSources, SourcesThatWaitForEachOther_AreGivenUp) {
  Setup setup;
  setup.peer_timeout = absl::Milliseconds(20);
  Start(setup);
  const std::shared_ptr<Availability> has = Nothing(artifact_);
  has->Add(4);
  const auto one = MakeControl(artifact_.image, {.name = "one", .availability = has});
  const auto two = MakeControl(artifact_.image, {.name = "two", .availability = Nothing(artifact_)});
  const absl::Status status = Get(artifact_, kCpu, Together({one, two})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << "as the provider says";
  EXPECT_THAT(status.message(), HasSubstr("11 of 12 chunks are missing, and no source in use (one, two) had "
                                          "any of the missing chunks for 20ms"));

  // Where the provider knows another, that gives the rest.
  auto whole = MakeControl(artifact_.image);
  auto provider = std::make_shared<ScriptedProvider>(
      std::vector<SourceBatch>{{.controls = {one, two}}, {.controls = {whole}}});
  auto lease = Get(artifact_, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(whole->total_fetches(), static_cast<int>(kChunks) - 1);
  EXPECT_THAT(provider->failures(), SizeIs(2));
  EXPECT_EQ(provider->failures()[0].status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineSources, SourceThatFailsToFill_ReportsItsOwnError) {
  Start();
  const std::shared_ptr<Availability> has = Nothing(artifact_);
  has->Add(0);
  auto filling = MakeControl(artifact_.image, {.name = "filling", .availability = has});
  auto provider = ProviderOf({filling, MakeControl(artifact_.image)});
  auto pending = Materialize(artifact_, kCpu, provider);
  EXPECT_TRUE(Eventually([&] { return filling->total_fetches() == 1; }));
  has->End(absl::CancelledError("no caller wants it any more"));
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
  ASSERT_THAT(provider->failures(), SizeIs(1));
  EXPECT_EQ(provider->failures()[0].status, absl::CancelledError("no caller wants it any more"));
  EXPECT_EQ(provider->failures()[0].delivered, 1u);
}

TEST_F(EngineSources, SourceThatAnnouncesOtherImage_IsNotAsked) {
  Start();
  auto misfit =
      MakeControl(artifact_.image, {.name = "misfit",
                                    .availability = std::make_shared<Availability>(
                                        artifact_.layout.image_bytes / 2, artifact_.layout.chunk_bytes)});
  auto provider = ProviderOf({misfit, MakeControl(artifact_.image)});
  EXPECT_TRUE(Get(artifact_, kCpu, provider).ok());
  EXPECT_EQ(misfit->total_fetches(), 0);
  ASSERT_THAT(provider->failures(), SizeIs(1));
  EXPECT_THAT(provider->failures()[0].status.message(), HasSubstr("misfit: the source announces 6 chunks"));
  ASSERT_THAT(OnlyReport().sources, SizeIs(2));
  EXPECT_EQ(OnlyReport().sources[0].source.name, "misfit");
  EXPECT_EQ(OnlyReport().sources[0].loss, SourceLoss::kNotOpened);
}

TEST_F(EngineSources, InvalidShares_AreIgnored) {
  Start();
  for (const uint32_t shares : {0u, 3u, 4'000'000'000u}) {
    ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto source = MakeControl(artifact_.image, {.type = SourceType::kRemote, .share = 3, .shares = shares});
    EXPECT_TRUE(Get(artifact_, kCpu, ProviderOf({source})).ok()) << shares;
  }
}

TEST_F(EngineSources, IngestThatWaitsForChunks_YieldsItsTurn) {
  Setup setup;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  const std::shared_ptr<Availability> has = Nothing(artifact_);
  auto filling = MakeControl(artifact_.image, {.name = "filling", .availability = has});
  auto waiting = Materialize(artifact_, kCpu, Together({filling}));
  const TestArtifact other = MakeChunkedArtifact(2, 1);
  EXPECT_TRUE(Get(other, kCpu, GoodProvider(other)).ok());
  EXPECT_EQ(waiting->progress().waiting_for, "chunks that no source has yet (filling)");
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) has->Add(chunk);
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
  EXPECT_EQ(waiting->progress().waiting_for, "");
  // The turn came back: as many run at once as before.
  const TestArtifact last = MakeChunkedArtifact(3, 1);
  EXPECT_TRUE(Get(last, kCpu, GoodProvider(last)).ok());
  EXPECT_EQ(engine_->queued_ingests(), 0);
}

TEST_F(EngineSources, WaitForSources_EndsOnCancellationAndAtDeadline) {
  Start();
  auto filling = MakeControl(artifact_.image, {.name = "filling", .availability = Nothing(artifact_)});
  const RequestContext context;
  auto cancelled = Materialize(artifact_, kCpu, Together({filling}), context);
  EXPECT_TRUE(Eventually([&] { return !cancelled->progress().waiting_for.empty(); }));
  std::thread canceller([&context] { context.cancellation.Cancel(); });
  EXPECT_EQ(cancelled->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  auto late = Materialize(artifact_, kCpu, Together({filling}), ContextFor(absl::Milliseconds(20)));
  EXPECT_EQ(late->Wait(ContextFor()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(EngineSources, CancelledSources_EndFetchesOnAnyThread) {
  Start();
  auto a = MakeControl(artifact_.image, {.name = "a", .held = true});
  auto b = MakeControl(artifact_.image, {.name = "b", .held = true, .own_thread = true});
  auto pending = Materialize(artifact_, kCpu, Together({a, b}));
  a->WaitForHeldFetches(2);
  b->WaitForHeldFetches(1);
  pending.reset();
  WaitUntilIdle();
  EXPECT_EQ(a->open() + b->open(), 0);
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
}

// Gives one source at once, and when it is asked for more does not answer before no caller wants to know.
class SlowToAnswer final : public SourceProvider {
 public:
  explicit SlowToAnswer(std::shared_ptr<SourceControl> control) : control_(std::move(control)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure>,
                                   bool needed) override {
    MoreSources more;
    if (needed) {
      more.sources.push_back(control_->MakeSource());
      more.look_again = absl::ZeroDuration();
      return more;
    }
    asked_.Notify();
    absl::Notification nobody_wants_it;
    const auto cancelled = context.cancellation.OnCancel([&] { nobody_wants_it.Notify(); });
    nobody_wants_it.WaitForNotification();
    return absl::CancelledError("too late");
  }

  void WaitUntilAsked() { asked_.WaitForNotification(); }

 private:
  const std::shared_ptr<SourceControl> control_;
  absl::Notification asked_;
};

TEST_F(EngineSources, SlowProvider_DelaysNeitherCompletionNorCancellation) {
  Start();
  for (const bool cancel : {false, true}) {
    auto held = MakeControl(artifact_.image, {.held = true});
    auto provider = std::make_shared<SlowToAnswer>(held);
    ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto pending = Materialize(artifact_, kCpu, provider);
    provider->WaitUntilAsked();
    held->WaitForHeldFetches(1);
    if (cancel) {
      pending.reset();
      WaitUntilIdle();
    } else {
      held->Release();
      EXPECT_TRUE(pending->Wait(ContextFor()).ok());
    }
  }
}

}  // namespace
}  // namespace tensorcast::testing::several_sources_test
