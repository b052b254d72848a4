#include "daemon/sources/granted_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/node/node_messages.h"
#include "daemon/sources/local_attach.h"
#include "daemon/sources/pull_source.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// A token names its lane, and the source also takes it for lanes that admit to less
// (daemon/serving/serve_registry.h): who may attach, or read the pool remotely, may as well be sent the
// bytes.
std::vector<std::string> LanesToTry(const PeerAccess& access, const v1::TransportGrant& grant,
                                    std::string_view forced_lane) {
  std::vector<std::string> lanes = {grant.lane()};
  if (!forced_lane.empty()) {
    return lanes;
  }
  for (const std::string& lane : grant.source().lanes()) {
    if (lane != grant.lane() && access.FindLane(lane) != nullptr && LaneCovers(grant.lane(), lane)) {
      lanes.push_back(lane);
    }
  }
  return lanes;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> PullOver(const RequestContext& context, const PeerAccess& access,
                                                      const v1::TransportGrant& grant,
                                                      const TraceContext& pulling, const std::string& lane,
                                                      const Cancellation& revoked, GrantOpening* opening) {
  transport::Transport* transport = access.FindLane(lane);
  if (transport == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("this node does not run the lane ", lane));
  }
  RequestContext open = context.Child();
  open.deadline = std::min(context.deadline, SteadyNow() + access.peer_timeout);
  v1::OpenPullRequest request;
  request.set_transport_id(grant.transport_id());
  request.set_grant_token(grant.token());
  request.set_replica_id(grant.replica().replica_id());
  request.set_artifact_id(grant.replica().artifact_id());
  request.set_receiver_node_id(access.link->node_id());
  request.set_lane(lane);
  *request.mutable_timeout() = rpc::ToProto(std::max(absl::ZeroDuration(), TimeLeft(context.deadline)));
  v1::OpenPullResponse response;
  TC_RETURN_IF_ERROR(access.peers->OpenPull(open, grant.source().grpc_address(), request, &response));
  opening->pull_opened = true;
  open.trace = pulling;
  TC_ASSIGN_OR_RETURN(std::unique_ptr<transport::Pull> pull,
                      transport->Connect(open, response.pull_descriptor()));
  SourceInfo info{.type = SourceType::kRemote,
                  .lane = lane,
                  .name = grant.source().name(),
                  .transport_id = grant.transport_id(),
                  .span = pulling,
                  .made_by = TraceContext::FromTraceparent(response.made_by()).value_or(TraceContext())};
  return MakePullSource(std::move(info), std::move(pull), revoked, access.peer_timeout);
}

// The connect stage of a pull.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOver(const RequestContext& context, const PeerAccess& access,
                                                      const v1::TransportGrant& grant,
                                                      const Manifest& manifest, const std::string& lane,
                                                      const Cancellation& revoked, GrantOpening* opening) {
  const absl::Time start = SteadyNow();
  RequestContext connect = context.Child();
  otel::Span span("P2P/Connect", context,
                  {{otel::attr::kStage, "connect"},
                   {otel::attr::kLane, lane},
                   {otel::attr::kTransportId, grant.transport_id()},
                   {otel::attr::kPeerNodeId, grant.source().node_id()}});
  span.AttachTo(&connect);
  // What the source does for this pull is linked to the pull itself, which begins once this is done.
  const TraceContext pulling = otel::ReserveSpan(context.trace);
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      lane == kLocalLane ? AttachToPeer(connect, access, grant, manifest, pulling)
                         : PullOver(connect, access, grant, pulling, lane, revoked, opening);
  span.SetError(source.status());
  otel::metrics::kP2pStageSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - start),
                                         {lane, "receive", "connect"});
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenGrantedSource(
    const RequestContext& context, const PeerAccess& access, const v1::TransportGrant& grant,
    const Manifest& manifest, std::string_view forced_lane, const Cancellation& revoked,
    GrantOpening* opening) {
  std::vector<std::string> tried;
  absl::Status last;
  for (const std::string& lane : LanesToTry(access, grant, forced_lane)) {
    TC_RETURN_IF_ERROR(context.Check("opening a source"));
    absl::StatusOr<std::unique_ptr<ChunkSource>> source =
        OpenOver(context, access, grant, manifest, lane, revoked, opening);
    if (source.ok()) {
      return source;
    }
    last = source.status();
    opening->unopened.push_back(
        {.source = {.type = lane == kLocalLane ? SourceType::kLocal : SourceType::kRemote,
                    .lane = lane,
                    .name = grant.source().name()},
         .status = last});
    tried.push_back(absl::StrCat(lane, ": ", last.message()));
  }
  return absl::Status(last.code(), absl::StrJoin(tried, "; "));
}

}  // namespace tensorcast::daemon
