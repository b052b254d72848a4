#include "daemon/sources/granted_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/sources/pull_source.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {

SourceFailure FailureToOpen(const v1::TransportGrant& grant, const std::string& lane, absl::Status status) {
  return {.source = {.type = lane == kLocalLane ? SourceType::kLocal : SourceType::kRemote,
                     .lane = lane,
                     .name = grant.source().name()},
          .status = std::move(status)};
}

// A token names its lane, and the source also takes it for lanes that admit to less
// (daemon/serving/serve_registry.h): a receiver that may attach, or read the pool remotely, may as well
// be sent the bytes.
std::vector<std::string> GrantedSourceOpener::LanesToTry(const v1::TransportGrant& grant,
                                                         std::string_view forced_lane) const {
  std::vector<std::string> lanes = {grant.lane()};
  if (!forced_lane.empty()) return lanes;
  for (const std::string& lane : grant.source().lanes()) {
    if (lane != grant.lane() && transport::FindTransport(options_.transports, lane) != nullptr &&
        transport::LaneCovers(grant.lane(), lane)) {
      lanes.push_back(lane);
    }
  }
  return lanes;
}

// OpenPull asks the source's daemon to serve the replica on this lane; its answer has the descriptor by which
// the lane connects. What was opened there is closed by ClosePull with the end of the grant (held_grants),
// also where the connection fails.
absl::StatusOr<std::unique_ptr<ChunkSource>> GrantedSourceOpener::PullOver(
    const RequestContext& context, const v1::TransportGrant& grant, const TraceContext& pulling,
    const std::string& lane, const Cancellation& revoked, GrantOpening* opening) const {
  transport::Transport* transport = transport::FindTransport(options_.transports, lane);
  if (transport == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("pull over the lane ", lane, ": this node does not run that lane; choose another lane"));
  }
  RequestContext open = context.Child();
  open.deadline = std::min(context.deadline, SteadyNow() + options_.peer_timeout);
  v1::OpenPullRequest request;
  request.set_grant_id(grant.grant_id());
  request.set_grant_token(grant.token());
  request.set_replica_id(grant.replica().replica_id());
  request.set_artifact_id(grant.replica().artifact_id());
  request.set_receiver_node_id(options_.node_id);
  request.set_lane(lane);
  *request.mutable_timeout() = rpc::ToProto(std::max(absl::ZeroDuration(), TimeLeft(context.deadline)));
  const absl::StatusOr<v1::OpenPullResponse> answer =
      options_.peers->OpenPull(open, {grant.source().grpc_address(), grant.source().name()}, request);
  // Where the answer was not waited for the source may serve all the same, without a receiver.
  const absl::Status& opened = answer.status();
  if (opened.ok() || absl::IsCancelled(opened) || absl::IsDeadlineExceeded(opened)) {
    opening->pull_opened = true;
  }
  TC_RETURN_IF_ERROR(opened);
  const v1::OpenPullResponse& response = *answer;
  // From here on the source's spans point to the pull, not to its opening.
  open.trace = pulling;
  TC_ASSIGN_OR_RETURN(std::unique_ptr<transport::Pull> pull,
                      transport->Connect(open, response.pull_descriptor()));
  const auto pulled = std::make_shared<PulledBytes>();
  // The source of one-sided reads does not see them.
  opening->pulled = transport->counts_served() ? pulled : nullptr;
  SourceInfo info{.type = SourceType::kRemote,
                  .lane = lane,
                  .name = grant.source().name(),
                  .grant_id = grant.grant_id(),
                  .span = pulling,
                  .made_by = TraceContext::FromTraceparent(response.made_by()).value_or(TraceContext()),
                  .replica_id = grant.replica().replica_id(),
                  .share = grant.share(),
                  .shares = std::max(1u, grant.shares())};
  return MakePullSource(
      std::move(info), transport, std::move(pull), revoked, options_.peer_timeout,
      [this, peer = grant.source().name(), lane](const absl::Status& ready) {
        NoteDevice(peer, lane, ready);
      },
      pulled);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> GrantedSourceOpener::OpenOver(
    const RequestContext& context, const v1::TransportGrant& grant, const Manifest& manifest,
    const std::string& lane, const Cancellation& revoked, GrantOpening* opening) const {
  const SteadyTime start = SteadyNow();
  RequestContext connect = context.Child();
  otel::Span span("P2P/Connect", context,
                  {{otel::attr::kStage, "connect"},
                   {otel::attr::kLane, lane},
                   {otel::attr::kGrantId, grant.grant_id()},
                   {otel::attr::kPeerNodeId, grant.source().node_id()}});
  span.AttachTo(&connect);
  // What the source does for this pull is linked to the pull itself, which begins once this is done.
  const TraceContext pulling = otel::ReserveSpan(context.trace);
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      lane == kLocalLane ? options_.local->Attach(connect, grant, manifest, pulling)
                         : PullOver(connect, grant, pulling, lane, revoked, opening);
  span.SetError(source.status());
  otel::metrics::kP2pStageSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - start),
                                         {lane, "receive", "connect"});
  return source;
}

void GrantedSourceOpener::NoteLane(const std::string& peer, const GrantOpening& opening) const {
  const std::string& lane = (*opening.source)->info().lane;
  absl::MutexLock lock(&mutex_);
  warned_.erase({peer, lane});
  if (opening.unopened.empty()) return;
  const SourceFailure& faster = opening.unopened.front();
  // What a lane does not do, as UCX serves no replica that fills, says nothing of the way to the peer.
  if (absl::IsFailedPrecondition(faster.status)) return;
  if (!warned_.insert({peer, faster.source.lane}).second) return;
  LOG(WARNING) << "Fetching from " << peer << " over the lane " << lane << ", since the faster lane "
               << faster.source.lane << ", which both nodes have, failed: " << faster.status;
}

void GrantedSourceOpener::NoteDevice(const std::string& peer, const std::string& lane,
                                     const absl::Status& ready) const {
  const std::pair<std::string, std::string> way(peer, absl::StrCat(lane, " to a GPU"));
  absl::MutexLock lock(&mutex_);
  if (ready.ok()) {
    warned_.erase(way);
  } else if (warned_.insert(way).second) {
    LOG(WARNING) << "Fetching from " << peer << " to a GPU through host memory, since the lane " << lane
                 << " could not prepare the GPU's memory: " << ready;
  }
}

// The lanes are tried one after the other: each failure is kept for the report, and the last one is the
// result.
GrantOpening GrantedSourceOpener::Open(const RequestContext& context, const v1::TransportGrant& grant,
                                       const Manifest& manifest, std::string_view forced_lane,
                                       const Cancellation& revoked) const {
  GrantOpening opening;
  opening.grant_id = grant.grant_id();
  for (const std::string& lane : LanesToTry(grant, forced_lane)) {
    const absl::Status wanted = context.Check(absl::StrCat("open source ", grant.source().name()));
    if (!wanted.ok()) {
      opening.source = wanted;
      return opening;
    }
    opening.source = OpenOver(context, grant, manifest, lane, revoked, &opening);
    if (opening.source.ok()) {
      NoteLane(grant.source().name(), opening);
      return opening;
    }
    opening.unopened.push_back(FailureToOpen(grant, lane, opening.source.status()));
  }
  return opening;
}

}  // namespace tensorcast::daemon
