#include "global_store/service/origin_report.h"

#include <grpcpp/channel.h>

#include <algorithm>

#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "global_store/service/convert.h"
#include "otel/api/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"

namespace tensorcast::global_store {
namespace {

// Daemons wait five seconds for consent to an eviction; what is decided must still reach them.
constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

OriginReport AskForOrigin(const RequestContext& context, const OriginToCheck& checked) {
  RequestContext call = context.Child();
  call.deadline = std::min(call.deadline, SteadyNow() + kPatience);
  v1::CheckOriginRequest request;
  ToProto(checked.origin, request.mutable_origin());
  auto stub = v1::StoreDaemon::NewStub(rpc::MakeChannel(checked.grpc_address));
  const absl::StatusOr<v1::CheckOriginResponse> answer =
      rpc::CallUnary(*stub, &v1::StoreDaemon::Stub::CheckOrigin, call, request,
                     {.retry_for = absl::ZeroDuration(), .what = "asking for an origin"});
  if (!answer.ok()) {
    LOG(INFO) << "the origin of " << checked.artifact_id << " on node " << checked.origin.node_id
              << " does not count for now: " << answer.status();
    return {.finding = OriginFinding::kSilent, .reason = std::string(answer.status().message())};
  }
  if (answer->intact()) return {.finding = OriginFinding::kIntact, .reason = ""};
  LOG(WARNING) << "the origin of " << checked.artifact_id << " on node " << checked.origin.node_id
               << " is gone, and is no copy any more: " << answer->reason();
  return {.finding = OriginFinding::kGone, .reason = answer->reason()};
}

}  // namespace tensorcast::global_store
