#include "rpc/convert/convert.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/steady_time.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::rpc {
namespace {

TEST(Convert, LocationsAndReplicaStates_RoundTrip) {
  for (const Location& location :
       {Location{LocationKind::kCpu, 0}, Location{LocationKind::kDisk, 0}, Location{LocationKind::kGpu, 3}}) {
    auto back = FromProto(ToProto(location));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, location);
  }
  for (ReplicaState state :
       {ReplicaState::kAllocating, ReplicaState::kFilling, ReplicaState::kPartial, ReplicaState::kReady,
        ReplicaState::kDraining, ReplicaState::kGone, ReplicaState::kFailed}) {
    EXPECT_NE(ToProto(state), v1::REPLICA_STATE_UNSPECIFIED);
    EXPECT_EQ(*FromProto(ToProto(state)), state);
  }
}

TEST(Convert, UnsetLocation_IsHostMemory) { EXPECT_EQ(FromProto(v1::Location())->kind, LocationKind::kCpu); }

TEST(Convert, UnknownEnumValues_AreRefused) {
  v1::Location location;
  location.set_kind(v1::LOCATION_KIND_GPU);
  location.set_device(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(location).status()));
  location.set_kind(static_cast<v1::LocationKind>(99));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(location).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::REPLICA_STATE_UNSPECIFIED).status()));
  v1::TransferReport report;
  report.add_stages()->set_stage("teleport");
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(report).status()));
}

TEST(Convert, TimesAndDurations_KeepNanoseconds) {
  for (absl::Time time : {absl::UnixEpoch(), absl::FromUnixNanos(1234567890123456789),
                          absl::UnixEpoch() - absl::Nanoseconds(1)}) {
    EXPECT_EQ(FromProto(ToProto(time)), time);
    EXPECT_GE(ToProto(time).nanos(), 0);
  }
  for (absl::Duration duration : {absl::ZeroDuration(), absl::Nanoseconds(1), -absl::Milliseconds(1500)}) {
    EXPECT_EQ(FromProto(ToProto(duration)), duration);
  }
  EXPECT_EQ(FromProto(ToProto(absl::InfiniteDuration())), absl::Hours(24 * 365 * 100));
}

TEST(Convert, TimesOutOfRange_AreClamped) {
  google::protobuf::Timestamp hostile;
  hostile.set_seconds(std::numeric_limits<int64_t>::max());
  hostile.set_nanos(-1);
  const google::protobuf::Timestamp last = ToProto(FromProto(hostile));
  EXPECT_EQ(last.seconds(), 253'402'300'799);
  EXPECT_EQ(last.nanos(), 999'999'999);
  EXPECT_EQ(ToProto(absl::InfiniteFuture()).seconds(), last.seconds());
  EXPECT_EQ(ToProto(absl::InfinitePast()).seconds(), -62'135'596'800);
}

TEST(Convert, ReplicaInfo_RoundTrips) {
  const ReplicaInfo info{.id = "r",
                         .artifact_id = "tc2:a",
                         .node_id = "node",
                         .location = {LocationKind::kGpu, 1},
                         .device_uuid = "GPU-1",
                         .state = ReplicaState::kFilling,
                         .image_bytes = 10,
                         .chunks_total = 5,
                         .chunks_present = 2,
                         .leases = 1,
                         .pinned = true,
                         .last_used = SteadyTime() + absl::Seconds(100)};
  const v1::Replica message = ToProto(info);
  EXPECT_EQ(message.node_id(), "node");
  EXPECT_EQ(message.location().device_uuid(), "GPU-1");
  EXPECT_EQ(ToProto(*FromProto(message)).SerializeAsString(), message.SerializeAsString());
}

TEST(Convert, TransferReport_RoundTripsWithErrors) {
  TransferReport report{.transfer_id = "t",
                        .artifact_id = "tc2:a",
                        .replica_id = "r",
                        .destination = {LocationKind::kCpu, 0},
                        .trace = TraceContext::NewRoot(),
                        .bytes = 7,
                        .bytes_total = 8,
                        .bytes_present = 6,
                        .queued = SteadyTime() + absl::Seconds(1),
                        .start = SteadyTime() + absl::Seconds(2),
                        .end = SteadyTime() + absl::Seconds(3),
                        .status = absl::DataLossError("no source is intact"),
                        .refetched_chunks = 4,
                        .verified_chunks = 5};
  for (Stage stage : {Stage::kFetch, Stage::kVerify, Stage::kPlace}) {
    report.stages.push_back({.stage = stage,
                             .source = {SourceType::kDisk, "disk", "/a", "grant"},
                             .bytes = 1,
                             .chunks = 2,
                             .start = SteadyTime() + absl::Seconds(4),
                             .end = SteadyTime() + absl::Seconds(5),
                             .busy = absl::Milliseconds(6),
                             .status = absl::UnavailableError("peer: gone")});
  }
  report.fetching = absl::Milliseconds(7);
  report.wall_time.whole = absl::Seconds(2);
  report.wall_time[TimeUse::kNoCpu] = absl::Milliseconds(9);
  report.reassigned_chunks = 8;
  report.sources = {{.source = {SourceType::kRemote, "tcp", "a", "grant"},
                     .filling = true,
                     .joined = SteadyTime() + absl::Seconds(4),
                     .left = SteadyTime() + absl::Seconds(5),
                     .bytes = 9,
                     .chunks = 10,
                     .asked = absl::Milliseconds(11),
                     .reassigned_chunks = 12,
                     .lost_chunks = 13,
                     .direct = true,
                     .loss = SourceLoss::kBadDigest,
                     .status = absl::DataLossError("wrong")},
                    {.source = {SourceType::kLocal, "local", "b"}}};
  report.sources[0].source.replica_id = "q";
  auto back = FromProto(ToProto(report));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->status, report.status);
  EXPECT_EQ(back->sources[0].loss, SourceLoss::kBadDigest);
  EXPECT_EQ(back->sources[0].source.replica_id, "q");
  EXPECT_EQ(back->sources[1].left, SteadyTime::InfiniteFuture());
  EXPECT_EQ(back->sources[1].loss, std::nullopt);
  EXPECT_EQ(back->stages[2].status, absl::UnavailableError("peer: gone"));
  EXPECT_EQ(back->stages[0].source.type, SourceType::kDisk);
  EXPECT_EQ(back->trace.trace_id, report.trace.trace_id);
  back->trace = report.trace;  // only the trace id travels
  EXPECT_EQ(ToProto(*back).SerializeAsString(), ToProto(report).SerializeAsString());
}

TEST(Convert, UnknownSourceLoss_IsReadAsDied) {
  v1::TransferReport report;
  report.add_sources()->set_loss("swallowed");
  EXPECT_EQ(FromProto(report)->sources[0].loss, SourceLoss::kDied);
}

TEST(Convert, ProgressOfUnknownSourceType_IsReadAsRemote) {
  const TransferProgress two = {.bytes_done = 1,
                                .bytes_total = 2,
                                .sources = {{.source = {SourceType::kLocal, "local", "node-a"}},
                                            {.source = {SourceType::kRemote, "tcp", "node-b"}, .bytes = 3}}};
  v1::Progress progress = ToProto(two);
  EXPECT_EQ(progress.lane(), "local") << "of the first, for clients that know one source only";
  ASSERT_EQ(FromProto(progress).sources.size(), 2);
  EXPECT_EQ(FromProto(progress).sources[0].source.type, SourceType::kLocal);
  EXPECT_EQ(FromProto(progress).sources[1].bytes, 3);
  progress.mutable_sources(0)->set_source_type("quantum");
  EXPECT_EQ(FromProto(progress).sources.front().source.type, SourceType::kRemote);
  EXPECT_EQ(FromProto(ToProto(TransferProgress{.bytes_present = 3})).bytes_present, 3u);
}

TEST(Convert, Status_RoundTripsWithPayloads) {
  EXPECT_EQ(FromProto(v1::Status()), absl::OkStatus());
  absl::Status error = absl::NotFoundError("no such key");
  error.SetPayload("b", absl::Cord(std::string("\0\xff", 2)));
  error.SetPayload("a", absl::Cord("1"));
  EXPECT_EQ(FromProto(ToProto(error)), error);
  EXPECT_EQ(ToProto(error).details(0).type_url(), "a");
}

TEST(Convert, UnknownStatusCode_IsReadAsUnknown) {
  v1::Status status;
  status.set_message("broken");
  for (const int code : {-1, 17, 1 << 30}) {
    status.set_code(code);
    EXPECT_EQ(FromProto(status), absl::UnknownError("broken"));
  }
}

// Else the message that holds it could not be read at the other end.
TEST(Convert, ErrorMessageThatIsNotUtf8_IsSentWithReplacements) {
  EXPECT_EQ(ToProto(absl::NotFoundError("no file \xff\xfe.txt")).message(), "no file ??.txt");
  EXPECT_EQ(ToProto(absl::NotFoundError("no file \xc3\xa9")).message(), "no file \xc3\xa9");
}

TEST(Convert, Origin_ComesBack) {
  const Origin origin{.node_id = "n",
                      .objects = {{.uri = "/m", .bytes = 7, .version = "18446744073709551615:2:-3:4"},
                                  {.uri = "s3://bucket/n", .bytes = 8, .version = "an ETag"}},
                      .untraceable = true,
                      .compared = true};
  EXPECT_EQ(FromProto(ToProto(origin)), origin);
}

}  // namespace
}  // namespace tensorcast::rpc
