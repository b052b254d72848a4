// The contract of images that are served while they fill: what is there is announced as it comes and can be
// pulled, the rest is refused, and an ingest that fails ends the pulls of it.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>

#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::contract_filling_test {
namespace {

constexpr uint64_t kImageBytes = FillingContract::kImageBytes;
constexpr uint32_t kChunks = FillingContract::kChunks;

// Until the mirror ends.
bool AwaitEnd(const Availability& mirror) {
  return AwaitChange(mirror, [&] { return mirror.ended(); });
}

TEST_P(TransportContract, FillingImage_IsServedOrRefusedAndWholeOneServed) {
  const auto availability = std::make_shared<Availability>(kImageBytes, kTestChunkBytes);
  const std::vector<HostSpan> segments = {source_memory_.span(0, kImageBytes)};
  const auto image = std::make_shared<InPlaceImage>(segments, availability);
  EXPECT_EQ(source_->Serve(image, /*receiver=*/"").status().code(),
            GetParam().serves_filling_images ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  WritePattern(segments);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) availability->Add(chunk);
  availability->End(absl::OkStatus());
  auto serving = source_->Serve(image, /*receiver=*/"");
  ASSERT_TRUE(serving.ok()) << serving.status();
  auto pull = ConnectTo((*serving)->descriptor());
  EXPECT_EQ(pull->availability(), nullptr) << "everything was there";
  EXPECT_EQ(PullAll(*pull, Destination(kImageBytes)), absl::OkStatus());
  EXPECT_TRUE(HoldPattern(Destination(kImageBytes), 0));
}

TEST_P(TransportContract, PullOfWholeImage_HasNoAvailability) {
  auto serving = ServePattern(kImageBytes);
  EXPECT_EQ(ConnectTo(serving->descriptor())->availability(), nullptr);
}

TEST_P(FillingContract, Chunks_AreAnnouncedInAnyOrderAndCanBePulled) {
  auto serving = ServeFilling();
  auto pull = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> mirror = pull->availability();
  ASSERT_NE(mirror, nullptr);
  EXPECT_EQ(mirror->image_bytes(), kImageBytes);
  EXPECT_EQ(mirror->chunk_bytes(), kTestChunkBytes);
  EXPECT_EQ(mirror->count(), 0u);
  std::vector<uint32_t> order(kChunks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  uint32_t there = 0;
  for (const uint32_t chunk : order) {
    EXPECT_FALSE(mirror->ended());
    Fill(chunk);
    ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->Has(chunk); })) << "chunk " << chunk;
    EXPECT_EQ(mirror->count(), ++there);
    EXPECT_EQ(FetchChunk(*pull, chunk), absl::OkStatus());
    EXPECT_TRUE(Holds(chunk)) << "chunk " << chunk;
  }
  // The replica is ready, and so is what is known of it.
  availability_->End(absl::OkStatus());
  ASSERT_TRUE(AwaitEnd(*mirror));
  EXPECT_EQ(mirror->end(), absl::OkStatus());
  EXPECT_EQ(PullAll(*pull, destination_), absl::OkStatus());
  EXPECT_TRUE(HoldPattern(destination_, 0));
}

TEST_P(FillingContract, LateReceiver_IsToldPresentChunks) {
  for (const uint32_t chunk : {0, 7, 20}) Fill(chunk);
  auto serving = ServeFilling();
  Fill(13);
  auto pull = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> mirror = pull->availability();
  ASSERT_NE(mirror, nullptr);
  ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->count() == 4; }));
  EXPECT_EQ(mirror->Words(), availability_->Words());
  for (const uint32_t chunk : {0, 7, 13, 20}) {
    EXPECT_EQ(FetchChunk(*pull, chunk), absl::OkStatus());
    EXPECT_TRUE(Holds(chunk)) << "chunk " << chunk;
  }
}

TEST_P(FillingContract, FetchOfMissingChunk_IsRefusedAndPullContinues) {
  Fill(3);
  Fill(4);
  auto serving = ServeFilling();
  auto pull = ConnectTo(serving->descriptor());
  // None of it, its end, its beginning.
  EXPECT_EQ(FetchChunk(*pull, 5).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Fetch(*pull, OffsetOf(4), kTestChunkBytes + 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Fetch(*pull, OffsetOf(3) - 1, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Fetch(*pull, kImageBytes - 1, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsUntouched(5) && IsUntouched(20));
  EXPECT_EQ(Fetch(*pull, kImageBytes, 0), absl::OkStatus());
  EXPECT_EQ(Fetch(*pull, OffsetOf(3) + 5, 2 * kTestChunkBytes - 5), absl::OkStatus());
  Fill(5);
  EXPECT_EQ(FetchChunk(*pull, 5), absl::OkStatus());
  EXPECT_TRUE(Holds(4) && Holds(5));
}

TEST_P(FillingContract, RefusedAndServedFetches_RunConcurrently) {
  for (uint32_t chunk = 0; chunk < kChunks; chunk += 2) Fill(chunk);
  auto serving = ServeFilling();
  auto pull = ConnectTo(serving->descriptor());
  Completions completions;
  FetchAll(*pull, destination_, completions);
  ASSERT_TRUE(completions.Wait());
  EXPECT_FALSE(completions.repeated());
  const std::vector<absl::Status> statuses = completions.statuses();
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const bool there = chunk % 2 == 0;
    EXPECT_EQ(statuses[chunk].code(), there ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition)
        << "chunk " << chunk << ": " << statuses[chunk];
    EXPECT_TRUE(there ? Holds(chunk) : IsUntouched(chunk)) << "chunk " << chunk;
  }
}

TEST_P(FillingContract, StagedFillingImage_IsReadOnlyWherePresent) {
  if (!GetParam().serves_staged_images) GTEST_SKIP() << "serves images in place only";
  const auto image = std::make_shared<StagedImage>(
      kImageBytes, source_memory_.span(0, kTestChunkBytes), 3,
      [this](uint64_t offset) {
        EXPECT_TRUE(availability_->HasRange(offset, 1)) << offset;
        return absl::OkStatus();
      },
      availability_);
  auto serving = *source_->Serve(image, /*receiver=*/"");
  auto pull = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> mirror = pull->availability();
  ASSERT_NE(mirror, nullptr);
  EXPECT_EQ(FetchChunk(*pull, 1).code(), absl::StatusCode::kFailedPrecondition);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) availability_->Add(chunk);
  ASSERT_TRUE(AwaitEnd(*mirror));
  EXPECT_EQ(PullAll(*pull, destination_), absl::OkStatus());
  EXPECT_TRUE(HoldPattern(destination_, 0));
}

TEST_P(FillingContract, FailedIngest_BreaksPullsAndWritesNoMore) {
  for (uint32_t chunk = 0; chunk < 20; ++chunk) Fill(chunk);
  auto serving = ServeFilling();
  auto pull = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> mirror = pull->availability();
  ASSERT_NE(mirror, nullptr);
  Completions completions;
  for (uint32_t chunk = 0; chunk < 20; ++chunk) {
    pull->Fetch(OffsetOf(chunk), Slice(destination_, OffsetOf(chunk), kTestChunkBytes),
                SteadyTime::InfiniteFuture(), completions.Expect());
  }
  ASSERT_TRUE(completions.WaitForAny());
  availability_->End(absl::DataLossError("chunk 20 is not what the manifest says"));
  ASSERT_TRUE(completions.Wait());
  ASSERT_TRUE(AwaitEnd(*mirror));
  EXPECT_EQ(mirror->end().code(), absl::StatusCode::kDataLoss) << mirror->end();
  EXPECT_THAT(mirror->end().message(), ::testing::HasSubstr("chunk 20 is not what the manifest says"));
  for (const absl::Status& status : completions.statuses()) {
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
  const absl::Status later = FetchChunk(*pull, 0);
  EXPECT_EQ(later.code(), absl::StatusCode::kDataLoss) << later;
  const absl::Status refused =
      receiver_->Connect(RequestContext::Background(absl::Seconds(30)), serving->descriptor()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;

  for (const HostSpan& span : destination_) std::ranges::fill(span, std::byte{0x5a});
  auto other = ServePattern(kImageBytes);
  EXPECT_EQ(PullAll(*ConnectTo(other->descriptor()), Destination(kImageBytes, kImageBytes)),
            absl::OkStatus());
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(0, kImageBytes), std::byte{0x5a}));
  EXPECT_FALSE(completions.repeated());
}

TEST_P(FillingContract, IngestErrorOfSource_IsNotTakenForErrorOfReceiver) {
  for (const absl::Status& why :
       {absl::CancelledError("no call wants it any more"), absl::InvalidArgumentError("nonsense"),
        absl::FailedPreconditionError("the disk is away")}) {
    const auto availability = std::make_shared<Availability>(kImageBytes, kTestChunkBytes);
    auto serving = *source_->Serve(std::make_shared<InPlaceImage>(image_, availability), /*receiver=*/"");
    auto pull = ConnectTo(serving->descriptor());
    availability->End(why);
    ASSERT_TRUE(AwaitEnd(*pull->availability()));
    const absl::Status end = pull->availability()->end();
    EXPECT_THAT(end.message(), ::testing::HasSubstr(why.message()));
    EXPECT_NE(end.code(), why.code());
    EXPECT_EQ(FetchChunk(*pull, 0).code(), end.code());
  }
}

TEST_P(FillingContract, RevokedServing_EndsItsMirror) {
  Fill(0);
  auto serving = ServeFilling();
  auto pull = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> mirror = pull->availability();
  ASSERT_NE(mirror, nullptr);
  serving.reset();
  for (const HostSpan& span : image_) std::ranges::fill(span, kNotYet);
  ASSERT_TRUE(AwaitEnd(*mirror));
  EXPECT_FALSE(mirror->end().ok());
  EXPECT_NE(mirror->end().code(), absl::StatusCode::kCancelled) << "that is the receiver's own";
  EXPECT_FALSE(FetchChunk(*pull, 0).ok());
  EXPECT_TRUE(IsUntouched(0));
  Fill(1);
  EXPECT_FALSE(mirror->Has(1));
}

TEST_P(FillingContract, AbandonedPull_EndsItsMirrorAsCancelled) {
  auto serving = ServeFilling();
  auto cancelled = ConnectTo(serving->descriptor());
  auto destroyed = ConnectTo(serving->descriptor());
  const std::shared_ptr<const Availability> of_cancelled = cancelled->availability();
  const std::shared_ptr<const Availability> of_destroyed = destroyed->availability();
  cancelled->Cancel();
  destroyed.reset();
  ASSERT_TRUE(AwaitEnd(*of_cancelled));
  ASSERT_TRUE(of_destroyed->ended());
  for (const auto& mirror : {of_cancelled, of_destroyed}) {
    EXPECT_EQ(mirror->end().code(), absl::StatusCode::kCancelled) << mirror->end();
    EXPECT_EQ(mirror->count(), 0u);
  }
  Fill(0);
  EXPECT_EQ(of_cancelled->count() + of_destroyed->count(), 0u);
}

}  // namespace
}  // namespace tensorcast::transport::contract_filling_test
