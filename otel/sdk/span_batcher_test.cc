// The queue of spans alone, with an exporter that the test holds. Includes OpenTelemetry.
#include "otel/sdk/span_batcher.h"

#include <gmock/gmock.h>

#include <thread>

#include "opentelemetry/sdk/trace/span_data.h"

namespace tensorcast::otel::sdk {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kQueue = 100;
constexpr size_t kBatch = 10;
constexpr std::chrono::hours kNever(1);
constexpr std::chrono::seconds kPatience(20);

// What it was given, batch by batch. While it is held, an export does not end.
class HeldExporter final : public otel_trace::SpanExporter {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<size_t> batches;
    bool held = false;
    bool shut_down = false;
  };
  explicit HeldExporter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::unique_ptr<otel_trace::Recordable> MakeRecordable() noexcept override {
    return std::make_unique<otel_trace::SpanData>();
  }
  otel_common::ExportResult Export(
      const opentelemetry::nostd::span<std::unique_ptr<otel_trace::Recordable>>& spans) noexcept override {
    std::unique_lock lock(state_->mutex);
    state_->batches.push_back(spans.size());
    state_->changed.notify_all();
    state_->changed.wait(lock, [this] { return !state_->held; });
    return otel_common::ExportResult::kSuccess;
  }
  bool ForceFlush(Timeout) noexcept override { return true; }
  bool Shutdown(Timeout) noexcept override { return state_->shut_down = true; }

 private:
  const std::shared_ptr<State> state_;
};

class SpanBatcherTest : public ::testing::Test {
 protected:
  void Start(std::chrono::milliseconds interval) {
    batcher_ = std::make_unique<SpanBatcher>(
        std::make_unique<HeldExporter>(state_),
        std::make_shared<Guard>(counters_, queue_, std::chrono::milliseconds(0), [](std::string_view) {}),
        kBatch, interval);
  }
  void End(size_t spans) {
    for (size_t i = 0; i < spans; ++i) batcher_->OnEnd(batcher_->MakeRecordable());
  }
  void Hold(bool held) {
    const std::lock_guard lock(state_->mutex);
    state_->held = held;
    state_->changed.notify_all();
  }
  bool AwaitBatches(size_t count) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, kPatience, [&] { return state_->batches.size() >= count; });
  }
  std::vector<size_t> Batches() {
    const std::lock_guard lock(state_->mutex);
    return state_->batches;
  }

  const std::shared_ptr<HeldExporter::State> state_ = std::make_shared<HeldExporter::State>();
  size_t queue_ = kQueue;
  SignalCounters counters_;
  std::unique_ptr<SpanBatcher> batcher_;
};

TEST_F(SpanBatcherTest, FullBatches_AreExportedAndRestWaitsForFlush) {
  Start(kNever);
  Hold(true);
  End(kBatch);
  ASSERT_TRUE(AwaitBatches(1));
  End(2 * kBatch + 3);  // while the first is being exported
  Hold(false);
  ASSERT_TRUE(AwaitBatches(3));
  EXPECT_THAT(Batches(), ElementsAre(kBatch, kBatch, kBatch));
  EXPECT_TRUE(batcher_->ForceFlush(kPatience));
  EXPECT_THAT(Batches(), ElementsAre(kBatch, kBatch, kBatch, 3));
  EXPECT_EQ(counters_.exported, 3 * kBatch + 3);
  EXPECT_EQ(counters_.pending, 0);
}

TEST_F(SpanBatcherTest, Interval_ExportsPartialBatch) {
  Start(std::chrono::milliseconds(1));
  End(3);
  EXPECT_TRUE(AwaitBatches(1));
}

TEST_F(SpanBatcherTest, FullQueue_DropsAndCountsSpans) {
  Start(kNever);
  Hold(true);
  End(kQueue + 7);
  EXPECT_EQ(counters_.dropped_queue_full, 7u);
  Hold(false);
  EXPECT_TRUE(batcher_->ForceFlush(kPatience));
  EXPECT_THAT(Batches(), Each(kBatch));
  EXPECT_EQ(counters_.exported, kQueue);
}

TEST_F(SpanBatcherTest, Flush_EndsAtItsTimeout) {
  Start(kNever);
  EXPECT_TRUE(batcher_->ForceFlush(kPatience));  // of nothing
  EXPECT_THAT(Batches(), IsEmpty());
  Hold(true);
  End(1);
  EXPECT_FALSE(batcher_->ForceFlush(std::chrono::milliseconds(1)));
  Hold(false);
  EXPECT_TRUE(batcher_->ForceFlush(Timeout::max()));
}

TEST_F(SpanBatcherTest, Shutdown_ExportsRestAndCountsLaterSpansAsDropped) {
  Start(kNever);
  End(kBatch + 2);
  EXPECT_TRUE(batcher_->Shutdown({}));
  EXPECT_EQ(counters_.exported, kBatch + 2);
  EXPECT_TRUE(state_->shut_down);
  End(1);
  EXPECT_EQ(counters_.dropped_shutdown, 1u);
  EXPECT_EQ(counters_.pending, 0);
  EXPECT_TRUE(batcher_->ForceFlush(kPatience));
  EXPECT_TRUE(batcher_->Shutdown({}));
}

// With no interval, so that a wake-up that got lost would show.
TEST_F(SpanBatcherTest, ManyThreads_EveryFullBatchIsExported) {
  constexpr size_t kThreads = 8, kRounds = 200;
  static_assert(kThreads * kRounds % kBatch == 0);
  queue_ = kThreads * kRounds;
  Start(kNever);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back([&] { End(kRounds); });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(AwaitBatches(kThreads * kRounds / kBatch));
  EXPECT_THAT(Batches(), Each(kBatch));
}

TEST_F(SpanBatcherTest, SpansEndedDuringShutdown_AreAllAccountedFor) {
  constexpr size_t kThreads = 4, kRounds = 500;
  Start(std::chrono::milliseconds(1));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < kRounds; ++i) {
        End(1);
        if (i % 100 == 0) batcher_->ForceFlush(kPatience);
      }
    });
  }
  threads.emplace_back([&] { batcher_->Shutdown({}); });
  batcher_->Shutdown({});
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters_.exported + counters_.dropped(), kThreads * kRounds);
  EXPECT_EQ(counters_.pending, 0);
}

}  // namespace
}  // namespace tensorcast::otel::sdk
