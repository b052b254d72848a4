// The parts that need no server: status mapping, pieces, backoff, finisher, stream writer.
#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "proto/types.pb.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/retry.h"
#include "rpc/status_mapping.h"
#include "rpc/stream_writer.h"

namespace tensorcast::rpc::plain_test {
namespace {

using ::testing::ElementsAre;

TEST(StatusMapping, StatusCodes_RoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
}

TEST(StatusMapping, StatusPayloads_TravelAsDetails) {
  absl::Status status = absl::AbortedError("old incarnation");
  status.SetPayload("tensorcast/binary", absl::Cord(std::string("\0binary", 7)));
  status.SetPayload("elsewhere", absl::Cord("x"));
  const grpc::Status sent = ToGrpcStatus(status);
  EXPECT_EQ(FromGrpcStatus(sent), status);
  // What gRPC's tools read.
  v1::Status details;
  ASSERT_TRUE(details.ParseFromString(sent.error_details()));
  EXPECT_EQ(details.code(), sent.error_code());
  EXPECT_EQ(details.message(), "old incarnation");
  EXPECT_EQ(details.details_size(), 2);
}

TEST(StatusMapping, StatusWithoutPayloads_HasNoDetails) {
  EXPECT_EQ(ToGrpcStatus(absl::AbortedError("old incarnation")).error_details(), "");
}

TEST(StatusMapping, InvalidStatusDetails_AreLeftOut) {
  const absl::Status back = FromGrpcStatus({grpc::StatusCode::ABORTED, "why", "\xff\xff rubbish"});
  EXPECT_EQ(back, absl::AbortedError("why"));
}

// gRPC takes 8 KiB of trailers, of which the message has up to three times its bytes, the details four
// thirds.
TEST(StatusMapping, PayloadsTooLargeForTrailers_AreLeftOut) {
  absl::Status status = absl::InternalError(std::string(100000, '\xc3'));
  status.SetPayload("x", absl::Cord(std::string(kMaxDetailsBytes - 1, 'x')));
  const grpc::Status sent = ToGrpcStatus(status);
  EXPECT_LE(sent.error_message().size() * 3 + sent.error_details().size() * 4 / 3, 8000u);
  EXPECT_TRUE(FromGrpcStatus(sent).GetPayload("x").has_value());
  status.SetPayload("y", absl::Cord("y"));
  EXPECT_EQ(ToGrpcStatus(status).error_details(), "");
}

TEST(StatusMapping, WithoutRetry_SurvivesTheRoundTrip) {
  const absl::Status status = WithoutRetry(absl::UnavailableError("away for long"));
  EXPECT_FALSE(IsWorthRetrying(status));
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_FALSE(IsWorthRetrying(back));
  EXPECT_EQ(back.message(), "away for long");
  EXPECT_TRUE(IsWorthRetrying(absl::UnavailableError("for a moment")));
  EXPECT_FALSE(IsWorthRetrying(absl::NotFoundError("never")));
  EXPECT_TRUE(WithoutRetry(absl::OkStatus()).ok());
}

TEST(StatusMapping, UnknownGrpcCode_BecomesUnknown) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::StatusCode::DO_NOT_USE, "odd")).code(),
            absl::StatusCode::kUnknown);
}

TEST(StatusMapping, LongErrorMessage_IsCut) {
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(absl::InternalError(std::string(100000, 'x'))));
  EXPECT_EQ(back.message().size(), kMaxErrorMessageBytes);
  EXPECT_TRUE(absl::EndsWith(back.message(), "[cut]"));
}

TEST(Pieces, Pieces_JoinToTheSameBytes) {
  for (size_t size : {0, 1, 9, 10, 11, 20, 25}) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>('a' + i));
    PieceJoiner joiner;
    for (size_t i = 0; i < PieceCount(bytes.size(), 10); ++i) {
      EXPECT_LE(Piece(bytes, i, 10).size(), 10u);
      ASSERT_TRUE(joiner.Add(Piece(bytes, i, 10)).ok());
    }
    EXPECT_EQ(joiner.Take(), bytes);
  }
}

TEST(Pieces, PieceCount_IsOneForEmptyAndForFullPiece) {
  EXPECT_EQ(PieceCount(0), 1u);
  EXPECT_EQ(PieceCount(kPieceBytes), 1u);
  EXPECT_EQ(PieceCount(kPieceBytes + 1), 2u);
}

TEST(Pieces, PieceJoiner_RefusesBytesBeyondItsMax) {
  PieceJoiner joiner(10);
  ASSERT_TRUE(joiner.Add("12345").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(joiner.Add("678901")));
  EXPECT_EQ(joiner.bytes(), "12345");
  EXPECT_TRUE(joiner.Add("67890").ok());
}

TEST(Backoff, Backoff_GrowsToMaxWithJitter) {
  Backoff backoff({.initial = absl::Milliseconds(10), .max = absl::Milliseconds(40)});
  for (int step_ms : {10, 20, 40, 40, 40}) {
    const absl::Duration wait = backoff.Next();
    EXPECT_GE(wait, absl::Milliseconds(step_ms) / 2);
    EXPECT_LE(wait, absl::Milliseconds(step_ms));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(10));
}

TEST(SleepFor, SleepForWithCancelledContext_EndsAtOnce) {
  RequestContext context;
  std::thread canceller([&] { context.cancellation.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(SleepFor(context, absl::Hours(1), "test")));
  canceller.join();
}

TEST(SleepFor, SleepForBeyondDeadline_FailsWithoutWaiting) {
  RequestContext context;
  context.deadline = SteadyNow() + absl::Minutes(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(SleepFor(context, absl::Hours(1), "test")));
}

TEST(Finisher, SeveralFinishes_OnlyFirstCounts) {
  std::vector<absl::Status> finished;
  {
    Finisher finisher([&](absl::Status status) { finished.push_back(std::move(status)); });
    Finisher copy = finisher;
    copy.Finish(absl::NotFoundError("first"));
    finisher.Finish(absl::OkStatus());
  }
  EXPECT_THAT(finished, ElementsAre(absl::NotFoundError("first")));
}

TEST(Finisher, DroppedFinisher_EndsCallWithInternal) {
  absl::Status finished;
  {
    Finisher finisher([&](absl::Status status) { finished = std::move(status); });
  }
  EXPECT_TRUE(absl::IsInternal(finished));
}

// Stands for gRPC: takes one message at a time and says when it is done with it.
class FakeSink : public StreamSink<int> {
 public:
  void SinkWrite(const int* message) override { written.push_back(*message); }
  void SinkFinish(const grpc::Status& status) override { finished.push_back(FromGrpcStatus(status)); }

  std::vector<int> written;
  std::vector<absl::Status> finished;
};

TEST(StreamWriter, StreamWriter_SendsInOrderAndFinishesLast) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  ASSERT_TRUE(writer.Write(1).ok());
  ASSERT_TRUE(writer.Write(2).ok());
  writer.Finish(absl::OkStatus());
  EXPECT_THAT(sink.written, ElementsAre(1));
  writer.OnWritten(true);
  EXPECT_THAT(sink.written, ElementsAre(1, 2));
  EXPECT_TRUE(sink.finished.empty());
  writer.OnWritten(true);
  EXPECT_THAT(sink.finished, ElementsAre(absl::OkStatus()));
}

TEST(StreamWriter, SlowClient_MissesIntermediateButNotLatestMessage) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  for (int i = 1; i <= 1000; ++i) writer.WriteLatest(i);  // the client takes none: never blocks
  ASSERT_TRUE(writer.Write(-1).ok());
  writer.OnWritten(true);
  writer.OnWritten(true);
  EXPECT_THAT(sink.written, ElementsAre(1, 1000, -1));
}

TEST(StreamWriter, WriteLatest_ReplacesOnlyWithinItsSlot) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  writer.WriteLatest(1, "a");  // in flight at once
  writer.WriteLatest(2, "a");
  writer.WriteLatest(10, "b");
  writer.WriteLatest(3, "a");
  for (int i = 0; i < 3; ++i) writer.OnWritten(true);
  EXPECT_THAT(sink.written, ElementsAre(1, 3, 10));
}

TEST(StreamWriter, WriteToFullStream_WaitsForRoom) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  for (int i = 0; i <= StreamWriter<int>::kMaxWaiting; ++i) ASSERT_TRUE(writer.Write(i).ok());
  absl::Notification wrote;
  std::thread blocked([&] {
    EXPECT_TRUE(writer.Write(99).ok());
    wrote.Notify();
  });
  EXPECT_FALSE(wrote.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  writer.OnWritten(true);
  wrote.WaitForNotification();
  blocked.join();
}

TEST(StreamWriter, WriteRest_ProducesOnDemandBeforeFinish) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  ASSERT_TRUE(writer.Write(0).ok());
  auto kept = std::make_shared<int>(0);
  writer.WriteRest([kept]() -> std::optional<int> {
    if (*kept == 3) return std::nullopt;
    return ++*kept;
  });
  writer.Finish(absl::OkStatus());
  EXPECT_EQ(*kept, 0) << "made before the client took what was there";
  writer.OnWritten(true);
  EXPECT_EQ(*kept, 1);
  EXPECT_TRUE(sink.finished.empty());
  for (int i = 0; i < 3; ++i) writer.OnWritten(true);
  EXPECT_THAT(sink.written, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sink.finished, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(kept.use_count(), 1) << "what the rest is made of is still held";
}

TEST(StreamWriter, ClientGone_WriteRestReleasesItsSource) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  auto kept = std::make_shared<int>(0);
  writer.WriteRest([kept]() -> std::optional<int> { return ++*kept; });
  writer.Finish(absl::OkStatus());
  EXPECT_THAT(sink.written, ElementsAre(1));
  writer.Close();
  EXPECT_EQ(kept.use_count(), 1);
  writer.OnWritten(false);
  EXPECT_EQ(sink.finished.size(), 1u);
}

TEST(StreamWriter, WriteToFullStream_EndsAtDeadline) {
  FakeSink sink;
  RequestContext context;
  context.deadline = SteadyNow() + absl::Milliseconds(20);
  StreamWriter<int> writer(&sink, context);
  for (int i = 0; i <= StreamWriter<int>::kMaxWaiting; ++i) ASSERT_TRUE(writer.Write(i).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(writer.Write(99)));
}

TEST(StreamWriter, ClosedStream_ReleasesBlockedWriterAndFinishesOnce) {
  FakeSink sink;
  StreamWriter<int> writer(&sink, RequestContext());
  for (int i = 0; i <= StreamWriter<int>::kMaxWaiting; ++i) ASSERT_TRUE(writer.Write(i).ok());
  std::thread blocked([&] { EXPECT_TRUE(absl::IsCancelled(writer.Write(99))); });
  writer.Close();
  blocked.join();
  EXPECT_TRUE(writer.closed());
  writer.Finish(absl::CancelledError("gone"));
  EXPECT_TRUE(sink.finished.empty()) << "finished while a message was in flight";
  writer.OnWritten(false);
  writer.Finish(absl::OkStatus());
  EXPECT_THAT(sink.finished, ElementsAre(absl::CancelledError("gone")));
  EXPECT_EQ(sink.written.size(), 1u);
}

}  // namespace
}  // namespace tensorcast::rpc::plain_test
