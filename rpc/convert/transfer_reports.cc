#include "rpc/convert/transfer_reports.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/convert/convert.h"

namespace tensorcast::rpc {
namespace {

// Reports name sources and stages by words, so that a reader needs no table of numbers.
constexpr std::array<SourceType, 3> kSourceTypes = {SourceType::kLocal, SourceType::kRemote,
                                                    SourceType::kDisk};
constexpr std::array<Stage, 3> kStages = {Stage::kFetch, Stage::kVerify, Stage::kPlace};

// Words of newer versions become the most general value that there is: a report is for people, and better
// told inexactly than not at all. A stage has no such value.
SourceType ParseSourceType(std::string_view name) {
  auto it = std::find_if(kSourceTypes.begin(), kSourceTypes.end(),
                         [name](SourceType type) { return SourceTypeName(type) == name; });
  return it == kSourceTypes.end() ? SourceType::kRemote : *it;
}

absl::StatusOr<Stage> ParseStage(std::string_view name) {
  auto it =
      std::find_if(kStages.begin(), kStages.end(), [name](Stage stage) { return StageName(stage) == name; });
  if (it == kStages.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("read a transfer report: this process does not know the stage \"", name,
                     "\"; upgrade the older of client and server"));
  }
  return *it;
}

// Times travel by the wall clock, since the steady clocks of two processes have nothing in common.
v1::StageReport ToProto(const StageReport& stage) {
  v1::StageReport message;
  message.set_stage(std::string(StageName(stage.stage)));
  message.set_source_type(std::string(SourceTypeName(stage.source.type)));
  message.set_lane(stage.source.lane);
  message.set_source(stage.source.name);
  message.set_bytes(stage.bytes);
  message.set_chunks(stage.chunks);
  *message.mutable_start() = rpc::ToProto(ToWallTime(stage.start));
  *message.mutable_end() = rpc::ToProto(ToWallTime(stage.end));
  *message.mutable_busy() = rpc::ToProto(stage.busy);
  if (!stage.status.ok()) *message.mutable_error() = rpc::ToProto(stage.status);
  message.set_grant_id(stage.source.grant_id);
  return message;
}

absl::StatusOr<StageReport> FromProto(const v1::StageReport& message) {
  StageReport stage;
  TC_ASSIGN_OR_RETURN(stage.stage, ParseStage(message.stage()));
  stage.source = {ParseSourceType(message.source_type()), message.lane(), message.source(),
                  message.grant_id()};
  stage.bytes = message.bytes();
  stage.chunks = message.chunks();
  stage.start = FromWallTime(rpc::FromProto(message.start()));
  stage.end = FromWallTime(rpc::FromProto(message.end()));
  stage.busy = rpc::FromProto(message.busy());
  stage.status = rpc::FromProto(message.error());
  return stage;
}

v1::SourceReport ToProto(const SourceReport& report) {
  v1::SourceReport message;
  message.set_source_type(std::string(SourceTypeName(report.source.type)));
  message.set_lane(report.source.lane);
  message.set_source(report.source.name);
  message.set_grant_id(report.source.grant_id);
  message.set_replica_id(report.source.replica_id);
  message.set_filling(report.filling);
  *message.mutable_joined() = rpc::ToProto(ToWallTime(report.joined));
  // A source that is still used has not left: the field stays out.
  if (report.left != SteadyTime::InfiniteFuture()) {
    *message.mutable_left() = rpc::ToProto(ToWallTime(report.left));
  }
  message.set_bytes(report.bytes);
  message.set_chunks(report.chunks);
  *message.mutable_asked() = rpc::ToProto(report.asked);
  message.set_reassigned_chunks(report.reassigned_chunks);
  message.set_lost_chunks(report.lost_chunks);
  message.set_direct(report.direct);
  if (report.loss.has_value()) message.set_loss(std::string(SourceLossName(*report.loss)));
  if (!report.status.ok()) *message.mutable_error() = rpc::ToProto(report.status);
  return message;
}

// Cannot fail: a report is shown as far as it is understood.
SourceReport FromProto(const v1::SourceReport& message) {
  SourceReport report;
  report.source = {ParseSourceType(message.source_type()), message.lane(), message.source(),
                   message.grant_id()};
  report.source.replica_id = message.replica_id();
  report.filling = message.filling();
  report.joined = FromWallTime(rpc::FromProto(message.joined()));
  if (message.has_left()) report.left = FromWallTime(rpc::FromProto(message.left()));
  report.bytes = message.bytes();
  report.chunks = message.chunks();
  report.asked = rpc::FromProto(message.asked());
  report.reassigned_chunks = message.reassigned_chunks();
  report.lost_chunks = message.lost_chunks();
  report.direct = message.direct();
  // A reason that is unknown here (a newer daemon's) is one all the same.
  if (!message.loss().empty()) report.loss = ParseSourceLoss(message.loss()).value_or(SourceLoss::kDied);
  report.status = rpc::FromProto(message.error());
  return report;
}

}  // namespace

// The first source stands by itself as well, beside the list of all.
v1::Progress ToProto(const TransferProgress& progress) {
  v1::Progress message;
  message.set_bytes_done(progress.bytes_done);
  message.set_bytes_total(progress.bytes_total);
  if (!progress.sources.empty()) {
    const SourceInfo& source = progress.sources.front().source;
    message.set_source_type(std::string(SourceTypeName(source.type)));
    message.set_lane(source.lane);
    message.set_source(source.name);
  }
  for (const SourceReport& source : progress.sources) *message.add_sources() = ToProto(source);
  message.set_waiting_for(progress.waiting_for);
  message.set_bytes_present(progress.bytes_present);
  return message;
}

// The fields of a single source are left out: the list of sources has it, too.
TransferProgress FromProto(const v1::Progress& progress) {
  TransferProgress result{.bytes_done = progress.bytes_done(),
                          .bytes_total = progress.bytes_total(),
                          .waiting_for = progress.waiting_for(),
                          .bytes_present = progress.bytes_present()};
  for (const v1::SourceReport& source : progress.sources()) result.sources.push_back(FromProto(source));
  return result;
}

v1::WallTime ToProto(const WallTime& time) {
  v1::WallTime message;
  // An empty message says that nothing was recorded.
  if (time.whole <= absl::ZeroDuration()) return message;
  *message.mutable_whole() = ToProto(time.whole);
  *message.mutable_idle() = ToProto(time[TimeUse::kIdle]);
  *message.mutable_buffers() = ToProto(time[TimeUse::kBuffers]);
  *message.mutable_limiter() = ToProto(time[TimeUse::kLimiter]);
  *message.mutable_working() = ToProto(time[TimeUse::kWorking]);
  *message.mutable_no_cpu() = ToProto(time[TimeUse::kNoCpu]);
  *message.mutable_stopped() = ToProto(time[TimeUse::kStopped]);
  return message;
}

WallTime FromProto(const v1::WallTime& message) {
  WallTime time;
  time.whole = FromProto(message.whole());
  time[TimeUse::kIdle] = FromProto(message.idle());
  time[TimeUse::kBuffers] = FromProto(message.buffers());
  time[TimeUse::kLimiter] = FromProto(message.limiter());
  time[TimeUse::kWorking] = FromProto(message.working());
  time[TimeUse::kNoCpu] = FromProto(message.no_cpu());
  time[TimeUse::kStopped] = FromProto(message.stopped());
  return time;
}

v1::TransferReport ToProto(const TransferReport& report) {
  v1::TransferReport message;
  message.set_transfer_id(report.transfer_id);
  message.set_artifact_id(report.artifact_id);
  message.set_replica_id(report.replica_id);
  *message.mutable_destination() = ToProto(report.destination);
  message.set_bytes(report.bytes);
  message.set_bytes_total(report.bytes_total);
  message.set_bytes_present(report.bytes_present);
  *message.mutable_queued() = ToProto(ToWallTime(report.queued));
  *message.mutable_start() = ToProto(ToWallTime(report.start));
  *message.mutable_end() = ToProto(ToWallTime(report.end));
  for (const StageReport& stage : report.stages) *message.add_stages() = ToProto(stage);
  for (const SourceReport& source : report.sources) *message.add_sources() = ToProto(source);
  *message.mutable_fetching() = ToProto(report.fetching);
  *message.mutable_wall_time() = ToProto(report.wall_time);
  message.set_reassigned_chunks(report.reassigned_chunks);
  message.set_refetched_chunks(report.refetched_chunks);
  message.set_verified_chunks(report.verified_chunks);
  if (!report.status.ok()) *message.mutable_error() = ToProto(report.status);
  if (report.trace.IsValid()) message.set_trace_id(report.trace.TraceIdHex());
  return message;
}

absl::StatusOr<TransferReport> FromProto(const v1::TransferReport& report) {
  TransferReport result;
  result.transfer_id = report.transfer_id();
  result.artifact_id = report.artifact_id();
  result.replica_id = report.replica_id();
  TC_ASSIGN_OR_RETURN(result.destination, FromProto(report.destination()));
  result.bytes = report.bytes();
  result.bytes_total = report.bytes_total();
  result.bytes_present = report.bytes_present();
  result.queued = FromWallTime(FromProto(report.queued()));
  result.start = FromWallTime(FromProto(report.start()));
  result.end = FromWallTime(FromProto(report.end()));
  // A stage that is not known here makes the whole report unreadable: its time could not be told.
  for (const v1::StageReport& message : report.stages()) {
    TC_ASSIGN_OR_RETURN(StageReport stage, FromProto(message));
    result.stages.push_back(std::move(stage));
  }
  for (const v1::SourceReport& source : report.sources()) result.sources.push_back(FromProto(source));
  result.fetching = FromProto(report.fetching());
  result.wall_time = FromProto(report.wall_time());
  result.reassigned_chunks = report.reassigned_chunks();
  result.refetched_chunks = report.refetched_chunks();
  result.verified_chunks = report.verified_chunks();
  result.status = FromProto(report.error());
  std::string trace_id;
  // The id alone, without a span: enough to look the trace up.
  if (report.trace_id().size() == 32 && absl::HexStringToBytes(report.trace_id(), &trace_id)) {
    std::copy(trace_id.begin(), trace_id.end(), result.trace.trace_id.begin());
  }
  return result;
}

}  // namespace tensorcast::rpc
