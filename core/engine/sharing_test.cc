// Several callers, one ingest: joining, leaving, waiting, and the engine's end in the middle.
#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "core/engine/engine_fixture.h"
#include "core/ingest/ingest_job.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::sharing_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineSharing : public EngineFixture {
 protected:
  // An ingest that stands still, with its first fetch under way.
  void StartHeld(uint32_t chunks = 8) {
    artifact_ = MakeChunkedArtifact(1, chunks);
    control_ = MakeControl(artifact_.image, {.held = true});
    provider_ = ProviderOf({control_});
  }

  TestArtifact artifact_;
  std::shared_ptr<SourceControl> control_;
  std::shared_ptr<ScriptedProvider> provider_;
};

TEST_F(EngineSharing, ConcurrentRequests_ShareOneIngest) {
  Start();
  StartHeld();
  std::vector<std::thread> threads;
  std::atomic<int> started = 0;
  std::atomic<int> shared = 0;
  std::atomic<int> succeeded = 0;
  std::vector<std::unique_ptr<PendingReplica>> pending(64);
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([&, i] {
      pending[i] = Materialize(artifact_, kCpu, provider_);
      shared += pending[i]->shared() ? 1 : 0;
      if (++started == 64) control_->Release();
      auto lease = pending[i]->Wait(ContextFor());
      succeeded += lease.ok() && Read(**lease) == artifact_.image ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(succeeded, 64);
  EXPECT_EQ(shared, 63);
  EXPECT_EQ(provider_->calls(), 1);
  EXPECT_EQ(control_->total_fetches(), 8);
  EXPECT_THAT(engine_->ListReplicas(), SizeIs(1));
}

TEST_F(EngineSharing, RequestForReadyReplica_CompletesWithoutTransfer) {
  Start();
  StartHeld();
  control_->Release();
  ASSERT_TRUE(Materialize(artifact_, kCpu, provider_)->Wait(ContextFor()).ok());
  auto untouched = ProviderOf({});
  auto pending = Materialize(artifact_, kCpu, untouched);
  bool called = false;
  pending->OnDone([&called] { called = true; });
  EXPECT_TRUE(called);
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_FALSE(pending->report().has_value());
  EXPECT_FALSE(pending->shared());
  EXPECT_EQ(pending->progress().bytes_done, artifact_.image.size());
  EXPECT_EQ(untouched->calls(), 0);
  EXPECT_THAT(untouched->finished(), IsEmpty());
}

TEST_F(EngineSharing, WaitDeadline_LeavesSharedIngestRunning) {
  Start();
  StartHeld();
  auto hasty = Materialize(artifact_, kCpu, provider_, ContextFor(absl::Seconds(3600)));
  auto patient = Materialize(artifact_, kCpu, provider_);
  control_->WaitForHeldFetches(1);
  EXPECT_EQ(hasty->Wait(ContextFor(absl::Milliseconds(1))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  hasty.reset();
  control_->Release();
  EXPECT_TRUE(patient->Wait(ContextFor()).ok());
  EXPECT_TRUE(patient->shared());
}

TEST_F(EngineSharing, CancelledCaller_LeavesSharedIngestRunning) {
  Start();
  StartHeld();
  const RequestContext context;
  auto cancelled = Materialize(artifact_, kCpu, provider_, context);
  auto other = Materialize(artifact_, kCpu, provider_);
  control_->WaitForHeldFetches(1);
  std::thread canceller([&context] { context.cancellation.Cancel(); });
  EXPECT_EQ(cancelled->Wait(context).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
  control_->Release();
  EXPECT_TRUE(other->Wait(ContextFor()).ok());
}

TEST_F(EngineSharing, LastDroppedRequest_CancelsIngest) {
  Start();
  StartHeld();
  auto one = Materialize(artifact_, kCpu, provider_);
  auto two = Materialize(artifact_, kCpu, provider_);
  control_->WaitForHeldFetches(2);
  one.reset();
  EXPECT_EQ(engine_->active_ingests(), 1);
  EXPECT_FALSE(engine_->AwaitNoIngests(SteadyTime::InfinitePast()));
  two.reset();
  listener_->WaitForReports(1);
  EXPECT_EQ(listener_->reports()[0].status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(provider_->failures(), IsEmpty()) << "the source is not to blame";
  EXPECT_THAT(provider_->finished(), SizeIs(1));
  EXPECT_EQ(control_->open(), 0);
  EXPECT_TRUE(engine_->AwaitNoIngests(SteadyTime::InfiniteFuture()));
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_EQ(pool_->stats().used_bytes, 2 * kGranuleBytes);
}

TEST_F(EngineSharing, CancellationOfAllCallers_CancelsIngest) {
  Start();
  StartHeld();
  const RequestContext one;
  const RequestContext two;
  auto first = Materialize(artifact_, kCpu, provider_, one);
  auto second = Materialize(artifact_, kCpu, provider_, two);
  control_->WaitForHeldFetches(1);
  absl::Notification done;
  first->OnDone([&done] { done.Notify(); });
  one.cancellation.Cancel();
  EXPECT_FALSE(done.HasBeenNotified());
  two.cancellation.Cancel();
  done.WaitForNotification();
  EXPECT_EQ(first->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineSharing, NewRequest_DoesNotJoinCancelledIngest) {
  Setup setup;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  StartHeld();
  const TestArtifact blocker = MakeChunkedArtifact(2, 1);
  auto blocking = MakeControl(blocker.image, {.held = true});
  auto running = Materialize(blocker, kCpu, ProviderOf({blocking}));
  blocking->WaitForHeldFetches(1);
  auto abandoned = Materialize(artifact_, kCpu, provider_);  // queued
  abandoned.reset();
  auto wanted = Materialize(artifact_, kCpu, GoodProvider(artifact_));
  EXPECT_FALSE(wanted->shared());
  blocking->Release();
  EXPECT_TRUE(wanted->Wait(ContextFor()).ok());
  EXPECT_EQ(provider_->calls(), 0);
  EXPECT_THAT(provider_->finished(), SizeIs(1)) << "told that it was cancelled while it was queued";
}

TEST(IngestJob, SharedIngestDeadline_IsTheLatestOfItsCallers) {
  RequestContext first;
  first.deadline = SteadyTime() + absl::Seconds(100);
  IngestRequest request;
  request.manifest = MakeChunkedArtifact(1, 1).manifest;
  IngestJob job(request, first);
  EXPECT_EQ(job.Context().deadline, first.deadline);
  EXPECT_TRUE(job.Join(SteadyTime() + absl::Seconds(200)));
  EXPECT_TRUE(job.Join(SteadyTime() + absl::Seconds(50)));
  EXPECT_EQ(job.Context().deadline, SteadyTime() + absl::Seconds(200));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(job.Context().cancellation.IsCancelled());
    job.Leave();
  }
  EXPECT_TRUE(job.Context().cancellation.IsCancelled());
  EXPECT_FALSE(first.cancellation.IsCancelled()) << "a caller's own request goes on";
  EXPECT_FALSE(job.Join(SteadyTime::InfiniteFuture()));
}

TEST_F(EngineSharing, OnDone_IsCalledOnceAtCompletion) {
  Start();
  StartHeld();
  auto pending = Materialize(artifact_, kCpu, provider_);
  std::atomic<int> calls = 0;
  absl::Notification done;
  pending->OnDone([&] {
    ++calls;
    done.Notify();
  });
  control_->WaitForHeldFetches(1);
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(pending->report().has_value());
  control_->Release();
  done.WaitForNotification();
  EXPECT_TRUE(pending->Wait(ContextFor(absl::ZeroDuration())).ok()) << "does not block any more";
  EXPECT_EQ(calls, 1);
  pending->OnDone([&calls] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_F(EngineSharing, DroppedRequest_IsNotCalledBack) {
  Start();
  StartHeld();
  auto keeps = Materialize(artifact_, kCpu, provider_);
  auto dropped = Materialize(artifact_, kCpu, provider_);
  bool called = false;
  dropped->OnDone([&called] { called = true; });
  dropped.reset();
  control_->Release();
  EXPECT_TRUE(keeps->Wait(ContextFor()).ok());
  WaitUntilIdle();
  EXPECT_FALSE(called);
}

// Its only caller loses interest at the very moment at which it is told that all went well.
class DroppedAtTheEnd final : public SourceProvider {
 public:
  explicit DroppedAtTheEnd(std::shared_ptr<SourceProvider> provider) : provider_(std::move(provider)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    asked_.WaitForNotification();
    return provider_->Next(context, ended, needed);
  }
  void Finished(const absl::Status&, std::span<const SourceFailure>) override { pending_.reset(); }

  void Start(std::unique_ptr<PendingReplica> pending) {
    pending_ = std::move(pending);
    asked_.Notify();
  }

 private:
  const std::shared_ptr<SourceProvider> provider_;
  absl::Notification asked_;
  std::unique_ptr<PendingReplica> pending_;
};

TEST_F(EngineSharing, IngestWithoutCallers_LeavesNoLeaseAtItsEnd) {
  Start();
  artifact_ = MakeChunkedArtifact(1, 3);
  auto provider = std::make_shared<DroppedAtTheEnd>(GoodProvider(artifact_));
  provider->Start(Materialize(artifact_, kCpu, provider));
  WaitUntilIdle();
  ASSERT_THAT(engine_->ListReplicas(), SizeIs(1));
  EXPECT_EQ(engine_->ListReplicas()[0].leases, 0u);
}

TEST_F(EngineSharing, FinishedReplica_StaysLeasedUntilWaiterIsDestroyed) {
  Setup setup;
  setup.host_granules = 1;
  Start(setup);
  StartHeld();
  control_->Release();
  auto pending = Materialize(artifact_, kCpu, provider_);
  listener_->WaitForReports(1);
  const TestArtifact other = MakeChunkedArtifact(3, 1);
  EXPECT_EQ(Get(other, kCpu, GoodProvider(other)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
  pending.reset();
  EXPECT_TRUE(Get(other, kCpu, GoodProvider(other)).ok());
}

TEST_F(EngineSharing, ForgottenArtifact_CancelsItsIngest) {
  Start();
  StartHeld();
  auto pending = Materialize(artifact_, kCpu, provider_);
  control_->WaitForHeldFetches(1);
  EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  const absl::Status status = pending->Wait(ContextFor()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("deleted"));
  WaitUntilIdle();
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
}

// Ends only after another caller has forgotten its artifact and put it again.
class ForgottenAtTheEnd final : public SourceProvider {
 public:
  ForgottenAtTheEnd(std::shared_ptr<SourceProvider> provider, std::function<void()> at_the_end)
      : provider_(std::move(provider)), at_the_end_(std::move(at_the_end)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    return provider_->Next(context, ended, needed);
  }
  void Finished(const absl::Status&, std::span<const SourceFailure>) override { at_the_end_(); }

 private:
  const std::shared_ptr<SourceProvider> provider_;
  const std::function<void()> at_the_end_;
};

TEST_F(EngineSharing, ReplicaAfterForget_OutlivesEarlierIngest) {
  Start();
  artifact_ = MakeChunkedArtifact(1, 3);
  for (const Location location : {kCpu, kDisk}) {
    std::string again;
    auto provider = std::make_shared<ForgottenAtTheEnd>(GoodProvider(artifact_), [&] {
      EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
      again = MustGet(artifact_, location)->replica_id();
    });
    auto pending = Materialize(artifact_, location, provider);
    EXPECT_FALSE(pending->Wait(ContextFor()).ok()) << "its own replica is gone";
    pending.reset();
    WaitUntilIdle();
    ASSERT_THAT(engine_->ListReplicas(), SizeIs(1)) << location.ToString();
    EXPECT_EQ(engine_->ListReplicas()[0].id, again);
    EXPECT_TRUE(engine_->LeaseReplica(again).ok());
    EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  }
}

TEST_F(EngineSharing, EngineStop_CancelsRunningAndQueuedIngests) {
  Setup setup;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  StartHeld();
  auto running = Materialize(artifact_, kGpu, provider_);
  const TestArtifact other = MakeChunkedArtifact(2, 1);
  auto queued_provider = GoodProvider(other);
  auto queued = Materialize(other, kDisk, queued_provider);
  control_->WaitForHeldFetches(1);
  Stop();
  for (const auto& pending : {running.get(), queued.get()}) {
    const absl::Status status = pending->Wait(ContextFor()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(status.message(), HasSubstr("is stopping"));
  }
  EXPECT_THAT(listener_->reports(), SizeIs(2)) << "the listener hears of the end of each";
  EXPECT_THAT(provider_->finished(), SizeIs(1));
  EXPECT_THAT(queued_provider->finished(), SizeIs(1));
}

// Waits for a source until it is told to go on, in vain; after that there is one.
class LateProvider final : public SourceProvider {
 public:
  explicit LateProvider(std::shared_ptr<SourceProvider> then) : then_(std::move(then)) {}

  void ObserveWaits(const WaitObserver& observer) override { observer_ = observer; }
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    if (std::exchange(waited_, true)) return then_->Next(context, ended, needed);
    observer_("a replica that fills");
    waits_.Notify();
    go_on_.WaitForNotification();
    observer_("");
    return absl::DeadlineExceededError("waited for a replica that fills");
  }

  void AwaitWait() { waits_.WaitForNotification(); }
  void GoOn() { go_on_.Notify(); }

 private:
  const std::shared_ptr<SourceProvider> then_;
  WaitObserver observer_;
  bool waited_ = false;
  absl::Notification waits_;
  absl::Notification go_on_;
};

TEST_F(EngineSharing, IngestThatWaitsForSource_IsNamedAndYieldsItsTurn) {
  Setup setup;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  artifact_ = MakeChunkedArtifact(1, 3);
  auto late = std::make_shared<LateProvider>(GoodProvider(artifact_));
  auto waiting = Materialize(artifact_, kCpu, late);
  late->AwaitWait();
  EXPECT_EQ(waiting->progress().waiting_for, "a replica that fills");
  const TestArtifact other = MakeChunkedArtifact(2, 1);
  EXPECT_TRUE(Get(other, kCpu, GoodProvider(other)).ok());
  late->GoOn();
  EXPECT_EQ(waiting->Wait(ContextFor()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waiting->progress().waiting_for, "");
}

TEST_F(EngineSharing, WaitAtItsDeadline_GoesOnForCallersWithMoreTime) {
  Start();
  artifact_ = MakeChunkedArtifact(1, 3);
  auto late = std::make_shared<LateProvider>(GoodProvider(artifact_));
  auto hasty = Materialize(artifact_, kCpu, late, ContextFor(absl::Seconds(3600)));
  late->AwaitWait();
  auto patient = Materialize(artifact_, kCpu, provider_);
  late->GoOn();
  EXPECT_TRUE(patient->Wait(ContextFor()).ok());
}

TEST_F(EngineSharing, FetchAtItsDeadline_IsNotBlamedWhenACallerHasMoreTime) {
  Start();
  artifact_ = MakeChunkedArtifact(1, 8);
  control_ = MakeControl(artifact_.image, {.held = true, .held_too_long = true});
  provider_ = ProviderOf({control_});
  auto hasty = Materialize(artifact_, kCpu, provider_, ContextFor(absl::Seconds(3600)));
  control_->WaitForHeldFetches(2);
  auto patient = Materialize(artifact_, kCpu, ProviderOf({}));
  control_->Release();
  auto lease = patient->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(Read(**lease), artifact_.image);
  EXPECT_EQ(control_->opened(), 1);
  EXPECT_EQ(control_->total_fetches(), 10);
  EXPECT_THAT(provider_->failures(), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::testing::sharing_test
