// The contract of cancellation, revocation, deadlines and sources that fail, within one process.
#include <algorithm>

#include <gmock/gmock.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::contract_failure_test {
namespace {

constexpr uint64_t kImageBytes = 24 * kTestChunkBytes;

bool IsOkOr(const absl::Status& status, absl::StatusCode code) {
  return status.ok() || status.code() == code;
}

// For each fetch of a chunk that is over: OK, and the chunk is whole, or an error.
void ExpectWholeChunksWhereOk(const std::vector<absl::Status>& statuses,
                              const std::vector<HostSpan>& destination) {
  for (size_t i = 0; i < statuses.size(); ++i) {
    const uint64_t offset = i * kTestChunkBytes;
    if (statuses[i].ok()) {
      EXPECT_TRUE(HoldPattern(Slice(destination, offset, kTestChunkBytes), offset)) << "chunk " << i;
    }
  }
}

void Fill(const std::vector<HostSpan>& spans, std::byte value) {
  for (const HostSpan& span : spans) std::fill(span.begin(), span.end(), value);
}

TEST_P(TransportContract, ConnectToRevokedPull_IsNotFound) {
  auto serving = ServePattern(kImageBytes);
  const std::string descriptor = serving->descriptor();
  serving.reset();
  EXPECT_EQ(receiver_->Connect(RequestContext::Background(absl::Seconds(30)), descriptor).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_P(TransportContract, Connect_EndsOnCancellationAndAtDeadline) {
  auto serving = ServePattern(kImageBytes);
  RequestContext context = RequestContext::Background(absl::Seconds(30));
  context.cancellation.Cancel();
  EXPECT_EQ(receiver_->Connect(context, serving->descriptor()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(receiver_->Connect(RequestContext::Background(-absl::Seconds(1)), serving->descriptor())
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportContract, ServingDestructor_BreaksPullsAndStopsReadingMemory) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  FetchAll(*pull, destination, completions);
  ASSERT_TRUE(completions.WaitForAny());
  serving.reset();
  std::fill_n(source_memory_.data(), kImageBytes, std::byte{0xee});
  ASSERT_TRUE(completions.Wait());
  EXPECT_FALSE(completions.repeated());
  ExpectWholeChunksWhereOk(completions.statuses(), destination);

  Completions later;
  pull->Fetch(0, {receiver_memory_.span(kImageBytes, 8)}, SteadyNow() + absl::Seconds(30), later.Expect());
  ASSERT_TRUE(later.Wait());
  EXPECT_FALSE(later.statuses()[0].ok());
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(kImageBytes, 8), std::byte{0}));
}

TEST_P(TransportContract, RevokedPull_LeavesOtherPullsRunning) {
  auto serving = ServePattern(kImageBytes);
  auto other = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  auto other_pull = ConnectTo(other->descriptor());
  serving.reset();
  EXPECT_FALSE(PullAll(*pull, Destination(kTestChunkBytes, kImageBytes)).ok());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  EXPECT_TRUE(PullAll(*other_pull, destination).ok());
  EXPECT_TRUE(HoldPattern(destination, 0));
  EXPECT_TRUE(PullAll(*ConnectTo(other->descriptor()), destination).ok());
}

TEST_P(TransportContract, CancelPull_CompletesFetchesOnceAndWritesNoMore) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  FetchAll(*pull, destination, completions);
  ASSERT_TRUE(completions.WaitForAny());
  pull->Cancel();
  pull->Cancel();
  ASSERT_TRUE(completions.Wait());
  const std::vector<absl::Status> statuses = completions.statuses();
  ExpectWholeChunksWhereOk(statuses, destination);
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(IsOkOr(status, absl::StatusCode::kCancelled)) << status;
  }

  Fill(destination, std::byte{0x5a});
  // By the time another pull is through, whatever the first one left behind has arrived too.
  const std::vector<HostSpan> elsewhere = Destination(kImageBytes, kImageBytes);
  EXPECT_TRUE(PullAll(*ConnectTo(serving->descriptor()), elsewhere).ok());
  EXPECT_TRUE(HoldPattern(elsewhere, 0));
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, kImageBytes), std::byte{0x5a}));
  EXPECT_FALSE(completions.repeated());
}

TEST_P(TransportContract, FetchAfterCancel_FailsAtOnce) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  pull->Cancel();
  Completions completions;
  pull->Fetch(0, {receiver_memory_.span(0, 8)}, SteadyTime::InfiniteFuture(), completions.Expect());
  ASSERT_TRUE(completions.Wait());
  EXPECT_EQ(completions.statuses()[0].code(), absl::StatusCode::kCancelled);
}

TEST_P(TransportContract, PullDestructor_CompletesFetchesFirst) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  FetchAll(*pull, destination, completions);
  pull.reset();
  EXPECT_EQ(completions.completed(), completions.statuses().size());
  ExpectWholeChunksWhereOk(completions.statuses(), destination);
  Fill(destination, std::byte{0x5a});
  EXPECT_TRUE(PullAll(*ConnectTo(serving->descriptor()), Destination(kImageBytes, kImageBytes)).ok());
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, kImageBytes), std::byte{0x5a}));
}

TEST_P(TransportContract, ExpiredFetch_LeavesOtherFetchesRunning) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "needs a source that can be slow";
  absl::Notification release;
  auto serving = ServeStaged(kImageBytes, [&](uint64_t offset) {
    if (offset < kTestChunkBytes) release.WaitForNotification();
    return absl::OkStatus();
  });
  auto pull = ConnectTo(serving->descriptor());
  Completions late;
  Completions completions;
  pull->Fetch(0, {receiver_memory_.span(0, 100)}, SteadyNow() + absl::Milliseconds(50), late.Expect());
  pull->Fetch(kTestChunkBytes, {receiver_memory_.span(100, 100)}, SteadyTime::InfiniteFuture(),
              completions.Expect());
  ASSERT_TRUE(late.Wait());
  EXPECT_EQ(late.statuses()[0].code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(completions.Wait());
  pull->Fetch(2 * kTestChunkBytes, {receiver_memory_.span(200, 100)}, SteadyTime::InfiniteFuture(),
              completions.Expect());
  ASSERT_TRUE(completions.Wait());
  release.Notify();
  EXPECT_EQ(PullAll(*pull, Destination(kImageBytes, kImageBytes)), absl::OkStatus());
  for (const absl::Status& status : completions.statuses()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, 100), std::byte{0})) << "written to after its end";
  EXPECT_TRUE(HoldsPattern(receiver_memory_.span(100, 100), kTestChunkBytes));
  EXPECT_TRUE(HoldsPattern(receiver_memory_.span(200, 100), 2 * kTestChunkBytes));
}

TEST_P(TransportContract, CancelledFetch_LeavesOtherFetchesRunning) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  std::vector<FetchId> fetches;
  for (uint64_t offset = 0; offset < kImageBytes; offset += kTestChunkBytes) {
    fetches.push_back(pull->Fetch(offset, Slice(destination, offset, kTestChunkBytes),
                                  SteadyTime::InfiniteFuture(), completions.Expect()));
  }
  for (size_t i = 0; i < fetches.size(); i += 2) pull->CancelFetch(fetches[i]);
  ASSERT_TRUE(completions.Wait());
  EXPECT_FALSE(completions.repeated());
  const std::vector<absl::Status> statuses = completions.statuses();
  for (size_t i = 0; i < fetches.size(); ++i) {
    EXPECT_TRUE(i % 2 == 0 ? IsOkOr(statuses[i], absl::StatusCode::kCancelled) : statuses[i].ok())
        << "fetch " << i << ": " << statuses[i];
  }
  ExpectWholeChunksWhereOk(statuses, destination);
  // What was cancelled, or is over, can be cancelled again; and what was under way of it comes nowhere.
  for (const FetchId fetch : fetches) pull->CancelFetch(fetch);
  Fill(destination, std::byte{0x5a});
  EXPECT_EQ(PullAll(*pull, Destination(kImageBytes, kImageBytes)), absl::OkStatus());
  EXPECT_TRUE(HoldPattern(Destination(kImageBytes, kImageBytes), 0));
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, kImageBytes), std::byte{0x5a}));
}

TEST_P(TransportContract, CancelledFetch_CompletesWithoutAnswerOfSource) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "needs a source that can be slow";
  absl::Notification release;
  auto serving = ServeStaged(kImageBytes, [&](uint64_t) {
    release.WaitForNotification();
    return absl::OkStatus();
  });
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  pull->CancelFetch(
      pull->Fetch(0, {receiver_memory_.span(0, 100)}, SteadyTime::InfiniteFuture(), completions.Expect()));
  ASSERT_TRUE(completions.Wait());
  EXPECT_EQ(completions.statuses()[0].code(), absl::StatusCode::kCancelled);
  release.Notify();
  EXPECT_EQ(PullAll(*pull, Destination(kImageBytes, kImageBytes)), absl::OkStatus());
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, 100), std::byte{0}));
}

TEST_P(TransportContract, SilentPull_BreaksWhateverItsFetchDeadlines) {
  if (!GetParam().serves_staged_images) {
    GTEST_SKIP() << "needs a source that can be slow: see StoppedSource_...";
  }
  absl::Notification release;
  auto serving = ServeStaged(kImageBytes, [&](uint64_t) {
    release.WaitForNotification();
    return absl::OkStatus();
  });
  auto pull = ConnectTo(serving->descriptor());
  pull->SetSilenceLimit(absl::Milliseconds(50));
  Completions completions;
  pull->Fetch(0, {receiver_memory_.span(0, 100)}, SteadyTime::InfiniteFuture(), completions.Expect());
  pull->Fetch(100, {receiver_memory_.span(100, 100)}, SteadyTime::InfiniteFuture(), completions.Expect());
  ASSERT_TRUE(completions.Wait());
  for (const absl::Status& status : completions.statuses()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  release.Notify();
  serving.reset();
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, 200), std::byte{0}));
}

TEST_P(TransportContract, MovingPull_IsNotSilentWhileAFetchWaitsLong) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "needs a source that can be slow";
  // Together the reads take longer than the limit, each far less.
  constexpr absl::Duration kLimit = absl::Seconds(1);
  absl::Mutex one_at_a_time;
  auto serving = ServeStaged(kImageBytes, [&](uint64_t) {
    absl::MutexLock lock(&one_at_a_time);
    absl::SleepFor(2 * kLimit / (kImageBytes / kTestChunkBytes));
    return absl::OkStatus();
  });
  auto pull = ConnectTo(serving->descriptor());
  pull->SetSilenceLimit(kLimit);
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  const SteadyTime start = SteadyNow();
  EXPECT_EQ(PullAll(*pull, destination), absl::OkStatus());
  EXPECT_GT(SteadyNow() - start, kLimit) << "nothing was tested";
  EXPECT_TRUE(HoldPattern(destination, 0));
}

TEST_P(TransportContract, IdlePull_IsNotSilent) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  constexpr absl::Duration kLimit = absl::Seconds(2);
  pull->SetSilenceLimit(kLimit);
  EXPECT_EQ(PullAll(*pull, Destination(kTestChunkBytes)), absl::OkStatus());
  absl::SleepFor(kLimit);
  EXPECT_EQ(PullAll(*pull, Destination(kTestChunkBytes)), absl::OkStatus());
}

TEST_P(TransportContract, FetchAfterItsDeadline_IsNotStarted) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  pull->Fetch(0, {receiver_memory_.span(0, kTestChunkBytes)}, SteadyNow() - absl::Seconds(1),
              completions.Expect());
  ASSERT_TRUE(completions.Wait());
  EXPECT_EQ(completions.statuses()[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, kTestChunkBytes), std::byte{0}));
}

TEST_P(TransportContract, FailedReadAtSource_FailsFetchWithItsCode) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "nothing is read at the source";
  auto serving = ServeStaged(kImageBytes, [](uint64_t offset) {
    return offset >= kTestChunkBytes ? absl::DataLossError("the disk is gone") : absl::OkStatus();
  });
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  pull->Fetch(0, {receiver_memory_.span(0, 100)}, SteadyTime::InfiniteFuture(), completions.Expect());
  ASSERT_TRUE(completions.Wait());
  pull->Fetch(kTestChunkBytes, {receiver_memory_.span(100, 100)}, SteadyTime::InfiniteFuture(),
              completions.Expect());
  ASSERT_TRUE(completions.Wait());
  EXPECT_TRUE(completions.statuses()[0].ok()) << completions.statuses()[0];
  EXPECT_EQ(completions.statuses()[1].code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(completions.statuses()[1].message(), ::testing::HasSubstr("the disk is gone"));
}

TEST_P(TransportContract, RevokedStagedImage_AwaitsReadAndReleasesPieces) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "serves images in place only";
  absl::Notification reading;
  absl::Notification release;
  auto image = std::make_shared<StagedImage>(kImageBytes, source_memory_.span(0, kTestChunkBytes), 2,
                                             [&](uint64_t offset) {
                                               if (offset == 0) {
                                                 reading.Notify();
                                                 release.WaitForNotification();
                                               }
                                               return absl::OkStatus();
                                             });
  std::weak_ptr<ServedImage> watch = image;
  auto serving = *source_->Serve(std::move(image), /*receiver=*/"");
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  FetchAll(*pull, Destination(kImageBytes), completions);
  reading.WaitForNotification();
  release.Notify();
  serving.reset();
  ASSERT_TRUE(completions.Wait());
  pull.reset();
  // ~StagedImage checks that every piece was released.
  receiver_.reset();
  source_.reset();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace tensorcast::transport::contract_failure_test
