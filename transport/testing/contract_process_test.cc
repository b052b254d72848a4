// The contract when the source is another process, which dies or stops.
#include <algorithm>

#include <gmock/gmock.h>

#include "base/steady_time.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::contract_process_test {
namespace {

constexpr uint64_t kImageBytes = 24 * kTestChunkBytes;

std::unique_ptr<SourceProcess> StartSource(const LaneUnderTest& lane) {
  auto process = SourceProcess::Start(lane.lane, kImageBytes);
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

TEST_P(SourceProcessContract, PullFromOtherProcess_CopiesTheImage) {
  auto process = StartSource(GetParam());
  auto pull = ConnectTo(process->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  ASSERT_TRUE(PullAll(*pull, destination).ok());
  EXPECT_TRUE(HoldPattern(destination, 0));
}

TEST_P(SourceProcessContract, KilledSource_IsUnavailable) {
  auto process = StartSource(GetParam());
  auto pull = ConnectTo(process->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  FetchAll(*pull, destination, completions, SteadyNow() + absl::Seconds(50));
  ASSERT_TRUE(completions.WaitForAny());
  process->Kill();
  ASSERT_TRUE(completions.Wait());
  Completions later;
  pull->Fetch(0, {receiver_memory_.span(kImageBytes, 8)}, SteadyNow() + absl::Seconds(50), later.Expect());
  ASSERT_TRUE(later.Wait());
  EXPECT_EQ(later.statuses()[0].code(), absl::StatusCode::kUnavailable) << later.statuses()[0];
  for (const absl::Status& status : completions.statuses()) {
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable) << status;
  }
}

TEST_P(SourceProcessContract, ConnectToAKilledSource_IsUnavailable) {
  auto process = StartSource(GetParam());
  process->Kill();
  const absl::Status status =
      receiver_->Connect(RequestContext::Background(absl::Seconds(30)), process->descriptor()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(SourceProcessContract, ConnectToStoppedSource_ExceedsItsDeadline) {
  auto process = StartSource(GetParam());
  process->Stop();
  const absl::Status status =
      receiver_->Connect(RequestContext::Background(absl::Milliseconds(300)), process->descriptor()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  process->Continue();
  auto pull = ConnectTo(process->descriptor());
  EXPECT_TRUE(PullAll(*pull, Destination(kImageBytes)).ok());
}

TEST_P(SourceProcessContract, RestartedSource_IsPulledFromAgain) {
  auto process = StartSource(GetParam());
  EXPECT_TRUE(PullAll(*ConnectTo(process->descriptor()), Destination(kImageBytes)).ok());
  process->Kill();
  process = StartSource(GetParam());
  EXPECT_TRUE(PullAll(*ConnectTo(process->descriptor()), Destination(kImageBytes)).ok());
}

TEST_P(SourceProcessContract, StoppedSource_WritesNothingAfterFetchDeadline) {
  auto process = StartSource(GetParam());
  auto pull = ConnectTo(process->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  FetchAll(*pull, destination, completions, SteadyNow() + absl::Milliseconds(700));
  ASSERT_TRUE(completions.WaitForAny());
  process->Stop();
  // Fetches that were already there may have completed; this one cannot, whatever the sockets still hold.
  Completions later;
  FetchAll(*pull, Destination(kImageBytes, kImageBytes), later, SteadyNow() + absl::Milliseconds(500));
  ASSERT_TRUE(later.Wait());
  ASSERT_TRUE(completions.Wait());
  EXPECT_FALSE(later.repeated() || completions.repeated());
  EXPECT_THAT(later.statuses(), ::testing::Contains(::testing::ResultOf(
                                    [](const absl::Status& status) { return status.code(); },
                                    absl::StatusCode::kDeadlineExceeded)));

  std::fill_n(receiver_memory_.data(), 2 * kImageBytes, std::byte{0x5a});
  process->Continue();
  pull.reset();
  if (!GetParam().source_survives_lost_receivers) process = StartSource(GetParam());
  // When the source answers again, whatever it still had to send was sent before this pull's bytes or not at
  // all.
  auto again = ConnectTo(process->descriptor());
  Completions one;
  again->Fetch(0, {receiver_memory_.span(0, 64)}, SteadyNow() + absl::Seconds(50), one.Expect());
  ASSERT_TRUE(one.Wait());
  ASSERT_TRUE(one.statuses()[0].ok()) << one.statuses()[0];
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(64, 2 * kImageBytes - 64), std::byte{0x5a}));
}

TEST_P(SourceProcessContract, StoppedSource_IsGivenUpAfterSilenceLimit) {
  auto process = StartSource(GetParam());
  auto pull = ConnectTo(process->descriptor());
  pull->SetSilenceLimit(absl::Milliseconds(500));
  Completions completions;
  FetchAll(*pull, Destination(kImageBytes), completions);
  ASSERT_TRUE(completions.WaitForAny());
  process->Stop();
  Completions later;
  FetchAll(*pull, Destination(kImageBytes, kImageBytes), later);
  ASSERT_TRUE(later.Wait());
  ASSERT_TRUE(completions.Wait());
  EXPECT_THAT(later.statuses(), ::testing::Contains(::testing::ResultOf(
                                    [](const absl::Status& status) { return status.code(); },
                                    absl::StatusCode::kDeadlineExceeded)));
}

TEST_P(SourceProcessContract, PullFromStoppedSource_CanBeDestroyed) {
  auto process = StartSource(GetParam());
  auto pull = ConnectTo(process->descriptor());
  Completions completions;
  FetchAll(*pull, Destination(kImageBytes), completions);
  ASSERT_TRUE(completions.WaitForAny());
  process->Stop();
  FetchAll(*pull, Destination(kImageBytes), completions);
  pull.reset();
  EXPECT_EQ(completions.completed(), completions.statuses().size());
}

}  // namespace
}  // namespace tensorcast::transport::contract_process_test
