// The contract of pulls that go well, and of requests that are refused without breaking anything.
#include <dirent.h>

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>

#include "base/steady_time.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::contract_pull_test {
namespace {

constexpr uint64_t kImageBytes = 20 * kTestChunkBytes + 12345;

TEST_P(TransportContract, ConcurrentFetches_CopyFragmentedImage) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  ASSERT_TRUE(PullAll(*pull, destination).ok());
  EXPECT_TRUE(HoldPattern(destination, 0));
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(kImageBytes, kTestChunkBytes), std::byte{0}))
      << "wrote past the end";
}

TEST_P(TransportContract, FetchDigest_MatchesFetchedBytes) {
  for (const bool staged : {false, GetParam().serves_staged_images}) {
    auto serving = staged ? ServeStaged(kImageBytes) : ServePattern(kImageBytes);
    auto pull = ConnectTo(serving->descriptor());
    const std::vector<HostSpan> destination =
        Fragment(receiver_memory_.span(0, kImageBytes), kTestChunkBytes / 3);
    Completions completions;
    FetchAll(*pull, destination, completions);
    ASSERT_TRUE(completions.Wait());
    const std::vector<std::optional<Digest>> digests = completions.digests();
    for (size_t chunk = 0; chunk < digests.size(); ++chunk) {
      const uint64_t offset = chunk * kTestChunkBytes;
      DigestBuilder expected;
      for (const HostSpan& span :
           Slice(destination, offset, std::min(kTestChunkBytes, kImageBytes - offset))) {
        expected.Update(span);
      }
      if (!staged) {
        EXPECT_EQ(digests[chunk].has_value(), GetParam().digests_on_the_way);
      }
      if (digests[chunk].has_value()) {
        EXPECT_EQ(*digests[chunk], expected.Finish()) << "chunk " << chunk << (staged ? ", staged" : "");
      }
    }
  }
}

TEST_P(TransportContract, Fetch_CopiesOneByteAnywhere) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const uint64_t offsets[] = {0, 1, kTestChunkBytes - 1, kImageBytes / 2, kImageBytes - 1};
  Completions completions;
  for (size_t i = 0; i < std::size(offsets); ++i) {
    pull->Fetch(offsets[i], {receiver_memory_.span(i * 3, 1)}, SteadyTime::InfiniteFuture(),
                completions.Expect());
  }
  ASSERT_TRUE(completions.Wait());
  for (size_t i = 0; i < std::size(offsets); ++i) {
    EXPECT_TRUE(HoldsPattern(receiver_memory_.span(i * 3, 1), offsets[i])) << offsets[i];
    EXPECT_TRUE(HoldsOnly(receiver_memory_.span(i * 3 + 1, 2), std::byte{0}));
  }
}

TEST_P(TransportContract, StagedImage_IsPulledOrRefused) {
  if (!GetParam().serves_staged_images) {
    auto image = std::make_shared<StagedImage>(kImageBytes, source_memory_.span(0, kTestChunkBytes), 1);
    EXPECT_EQ(source_->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
    return;
  }
  auto serving = ServeStaged(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  ASSERT_TRUE(PullAll(*pull, destination).ok());
  EXPECT_TRUE(HoldPattern(destination, 0));
}

TEST_P(TransportContract, EmptyFetch_Succeeds) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  pull->Fetch(0, {}, SteadyTime::InfiniteFuture(), completions.Expect());
  pull->Fetch(kImageBytes, {}, SteadyTime::InfiniteFuture(), completions.Expect());
  pull->Fetch(7, {receiver_memory_.span(0, 0)}, SteadyTime::InfiniteFuture(), completions.Expect());
  ASSERT_TRUE(completions.Wait());
  EXPECT_THAT(completions.statuses(), ::testing::Each(absl::OkStatus()));
}

TEST_P(TransportContract, EmptyImage_IsPulled) {
  auto serving = ServePattern(0);
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  pull->Fetch(0, {}, SteadyTime::InfiniteFuture(), completions.Expect());
  ASSERT_TRUE(completions.Wait());
  EXPECT_TRUE(completions.statuses()[0].ok());
}

TEST_P(TransportContract, FetchPastTheEnd_IsRefusedAndPullContinues) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  Completions refused;
  pull->Fetch(kImageBytes - 4, {receiver_memory_.span(0, 5)}, SteadyTime::InfiniteFuture(), refused.Expect());
  pull->Fetch(kImageBytes + 1, {}, SteadyTime::InfiniteFuture(), refused.Expect());
  pull->Fetch(~uint64_t{0}, {receiver_memory_.span(0, 5)}, SteadyTime::InfiniteFuture(), refused.Expect());
  ASSERT_TRUE(refused.Wait());
  for (const absl::Status& status : refused.statuses()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  EXPECT_TRUE(PullAll(*pull, destination).ok());
  EXPECT_TRUE(HoldPattern(destination, 0));
}

TEST_P(TransportContract, FetchIntoUnregisteredMemory_IsRefusedAndPullContinues) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  TestMemory unregistered(kTestChunkBytes);
  Completions refused;
  pull->Fetch(0, {receiver_memory_.span(0, 10), unregistered.span(0, 10)}, SteadyTime::InfiniteFuture(),
              refused.Expect());
  ASSERT_TRUE(refused.Wait());
  EXPECT_EQ(refused.statuses()[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(HoldsOnly(unregistered.span(0, 10), std::byte{0}));
  EXPECT_TRUE(PullAll(*pull, Destination(kImageBytes)).ok());
}

TEST_P(TransportContract, UnregisteredImage_IsNotServed) {
  TestMemory unregistered(kTestChunkBytes);
  auto image = std::make_shared<InPlaceImage>(std::vector<HostSpan>{unregistered.span(0, 100)});
  EXPECT_EQ(source_->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(TransportContract, InvalidDescriptor_IsRefused) {
  auto serving = ServePattern(kImageBytes);
  const std::string good = serving->descriptor();
  const RequestContext context = RequestContext::Background(absl::Seconds(30));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(receiver_->Connect(context, good.substr(0, length)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_EQ(receiver_->Connect(context, good + "x").status().code(), absl::StatusCode::kInvalidArgument);
  std::string bad = good;
  bad[0] ^= 1;
  EXPECT_EQ(receiver_->Connect(context, bad).status().code(), absl::StatusCode::kInvalidArgument);
  // Every descriptor starts with four bytes of magic and one of version.
  bad = good;
  bad[4] = 77;
  EXPECT_EQ(receiver_->Connect(context, bad).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(receiver_->Connect(context, good).ok());
}

TEST_P(TransportContract, DescriptorSize_IsMax64KiB) {
  EXPECT_LE(ServePattern(kImageBytes)->descriptor().size(), size_t{64} << 10);
}

TEST_P(TransportContract, FetchCallback_MayFetchMore) {
  auto serving = ServePattern(kImageBytes);
  auto pull = ConnectTo(serving->descriptor());
  const std::vector<HostSpan> destination = Destination(kImageBytes);
  Completions completions;
  const FetchDone last = completions.Expect();
  std::function<void(uint64_t)> fetch_from = [&](uint64_t offset) {
    const uint64_t bytes = std::min(kTestChunkBytes, kImageBytes - offset);
    pull->Fetch(offset, Slice(destination, offset, bytes), SteadyTime::InfiniteFuture(),
                [&, offset, bytes](const FetchResult& result) {
                  if (!result.ok() || offset + bytes == kImageBytes) {
                    last(result);
                  } else {
                    fetch_from(offset + bytes);
                  }
                });
  };
  fetch_from(0);
  ASSERT_TRUE(completions.Wait());
  EXPECT_TRUE(completions.statuses()[0].ok()) << completions.statuses()[0];
  EXPECT_TRUE(HoldPattern(destination, 0));
}

TEST_P(TransportContract, Serving_ServesManyPullsConcurrently) {
  constexpr int kPulls = 8;
  constexpr uint64_t kBytes = 5 * kTestChunkBytes + 99;
  auto serving = ServePattern(kBytes);
  std::vector<std::thread> threads;
  for (int i = 0; i < kPulls; ++i) {
    threads.emplace_back([&, i] {
      auto pull = ConnectTo(serving->descriptor());
      const std::vector<HostSpan> destination = Destination(kBytes, i * 6 * kTestChunkBytes);
      EXPECT_TRUE(PullAll(*pull, destination).ok());
      EXPECT_TRUE(HoldPattern(destination, 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(TransportContract, Transport_ServesAndPullsConcurrently) {
  auto serving = ServePattern(kImageBytes);
  const std::vector<HostSpan> back = Fragment(receiver_memory_.span(0, kImageBytes), kTestChunkBytes);
  WritePattern(back);
  auto other = receiver_->Serve(std::make_shared<InPlaceImage>(back), /*receiver=*/"");
  ASSERT_TRUE(other.ok());
  auto there = ConnectTo(serving->descriptor());
  auto here = source_->Connect(RequestContext::Background(absl::Seconds(30)), (*other)->descriptor());
  ASSERT_TRUE(here.ok()) << here.status();
  const uint64_t at = 24 * kTestChunkBytes;
  const std::vector<HostSpan> to_receiver = Fragment(receiver_memory_.span(at, kImageBytes), kTestChunkBytes);
  const std::vector<HostSpan> to_source = Fragment(source_memory_.span(at, kImageBytes), kTestChunkBytes);
  Completions completions;
  FetchAll(*there, to_receiver, completions);
  FetchAll(**here, to_source, completions);
  ASSERT_TRUE(completions.Wait());
  EXPECT_THAT(completions.statuses(), ::testing::Each(absl::OkStatus()));
  EXPECT_TRUE(HoldPattern(to_receiver, 0));
  EXPECT_TRUE(HoldPattern(to_source, 0));
}

TEST_P(TransportContract, ReceiverTrace_ReachesTheSource) {
  auto serving = ServePattern(kImageBytes);
  const RequestContext context = RequestContext::Background(absl::Seconds(30));
  ASSERT_TRUE(context.trace.IsValid());
  auto pull = receiver_->Connect(context, serving->descriptor());
  ASSERT_TRUE(pull.ok());
  EXPECT_EQ(serving->stats().receiver_trace.TraceIdHex(), context.trace.TraceIdHex());
}

int CountEntries(const char* directory) {
  DIR* dir = opendir(directory);
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

TEST_P(TransportContract, RepeatedPulls_LeaveNoDescriptorsAndThreads) {
  auto serving = ServePattern(kTestChunkBytes);
  const std::vector<HostSpan> destination = Destination(kTestChunkBytes);
  int descriptors = 0, threads = 0;
  for (int i = 0; i < 60; ++i) {
    if (i == 5) {
      descriptors = CountEntries("/proc/self/fd");
      threads = CountEntries("/proc/self/task");
    }
    auto pull = ConnectTo(serving->descriptor());
    ASSERT_TRUE(PullAll(*pull, destination).ok());
  }
  // A lane may keep a few connections for later pulls, and both ends of them are in this process.
  constexpr int kIdleConnections = 4;
  constexpr int kDescriptorsOfBothEnds = 4;
  EXPECT_LE(CountEntries("/proc/self/fd"), descriptors + kIdleConnections * kDescriptorsOfBothEnds);
  EXPECT_LE(CountEntries("/proc/self/task"), threads);
}

TEST_P(TransportContract, ServeStats_CountServedBytes) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "the source of one-sided reads does not see them";
  auto serving = ServePattern(kImageBytes);
  const SteadyTime before = SteadyNow();
  auto pull = ConnectTo(serving->descriptor());
  ASSERT_TRUE(PullAll(*pull, Destination(kImageBytes)).ok());
  pull.reset();
  serving->End();
  const ServeStats stats = serving->stats();
  EXPECT_GE(stats.requests, 1u);
  EXPECT_EQ(stats.bytes, kImageBytes) << "of a serving that has ended, all that the receiver has";
  EXPECT_GE(stats.first_request, before);
  EXPECT_GE(stats.last_completion, stats.first_request);
}

}  // namespace
}  // namespace tensorcast::transport::contract_pull_test
