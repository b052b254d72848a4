#include "client/session.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/steady_time.h"
#include "client/replica_state.h"
#include "otel/api/span.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

// The daemon answers on the handle socket at once or not at all.
constexpr absl::Duration kClaimTimeout = absl::Seconds(10);

struct GetPlan {
  v1::MaterializeReplicaRequest request;
  std::string handle_socket;  // empty: not to be attached
};

absl::StatusOr<GetPlan> PlanGet(Core& core, const RequestContext& context, std::string_view artifact,
                                const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(const Location location, Location::Parse(options.location));
  GetPlan plan;
  if (IsArtifactId(artifact)) {
    plan.request.set_artifact_id(std::string(artifact));
  } else {
    plan.request.set_key(std::string(artifact));
  }
  *plan.request.mutable_location() = rpc::ToProto(location);
  plan.request.set_lane(options.lane);
  plan.request.set_wait_for_space(options.wait_for_space);
  if (!options.attach || location.kind == LocationKind::kDisk) return plan;
  if (location.kind == LocationKind::kGpu && core.devices == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attaching at ", options.location, " needs ClientOptions::devices, with which to open GPU memory"));
  }
  TC_ASSIGN_OR_RETURN(plan.handle_socket, core.link->HandleSocket(context));
  plan.request.set_attach(true);
  return plan;
}

absl::StatusOr<v1::MaterializeReplicaResult> Materialize(Core& core, const RequestContext& context,
                                                         const GetPlan& plan, const GetOptions& options) {
  std::optional<v1::MaterializeReplicaResult> result;
  absl::Status status = rpc::CallServerStream(core.link->daemon(), &v1::StoreDaemon::Stub::MaterializeReplica,
                                              context, plan.request,
                                              [&](v1::MaterializeReplicaResponse&& response) {
                                                if (response.has_progress() && options.on_progress)
                                                  options.on_progress(rpc::FromProto(response.progress()));
                                                if (response.has_result())
                                                  result = std::move(*response.mutable_result());
                                                return absl::OkStatus();
                                              },
                                              {.retry_for = absl::ZeroDuration(), .what = "materializing"});
  if (!status.ok()) return status;
  if (!result.has_value()) return absl::InternalError("the daemon ended the call without a result");
  return *std::move(result);
}

absl::StatusOr<ReplicaFacts> FactsOf(const v1::MaterializeReplicaResult& result) {
  ReplicaFacts facts;
  facts.artifact_id = result.artifact_id();
  facts.replica_id = result.replica().replica_id();
  facts.key_revision = result.key_revision();
  facts.key_unconfirmed = result.key_unconfirmed();
  TC_ASSIGN_OR_RETURN(facts.location, rpc::FromProto(result.replica().location()));
  if (result.has_transfer()) {
    TC_ASSIGN_OR_RETURN(facts.transfer, rpc::FromProto(result.transfer()));
  }
  return facts;
}

absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const RequestContext& context, const GetPlan& plan,
                                                      const v1::MaterializeReplicaResult& result) {
  auto claimed = ClaimedReplica::Claim(plan.handle_socket, result.ticket(),
                                       std::min(context.deadline, SteadyNow() + kClaimTimeout));
  if (claimed.ok()) return claimed;
  return Annotate(claimed.status(), absl::StrCat("claiming replica ", result.replica().replica_id(), " on ",
                                                 plan.handle_socket));
}

absl::StatusOr<std::unique_ptr<Replica>> GetOnce(Core& core, const RequestContext& context,
                                                 std::string_view artifact, const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(const GetPlan plan, PlanGet(core, context, artifact, options));
  TC_ASSIGN_OR_RETURN(const v1::MaterializeReplicaResult result, Materialize(core, context, plan, options));
  TC_ASSIGN_OR_RETURN(ReplicaFacts facts, FactsOf(result));
  // The ticket is good for seconds only, so it goes first; a manifest can be large.
  std::unique_ptr<ClaimedReplica> claimed;
  if (plan.request.attach()) {
    TC_ASSIGN_OR_RETURN(claimed, Claim(context, plan, result));
  }
  TC_ASSIGN_OR_RETURN(auto manifest, core.manifests.Get(context, facts.artifact_id));
  if (claimed == nullptr) return MakeUnattachedReplica(std::move(facts), std::move(manifest));
  return MakeAttachedReplica(std::move(facts), std::move(manifest), std::move(claimed), core.devices);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> RunGet(Core& core, const RequestContext& context,
                                                std::string_view artifact, const GetOptions& options) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Get", operation,
                  {{otel::attr::kOperationType, "get"},
                   {otel::attr::kLocation, options.location.substr(0, options.location.find(':'))}});
  span.AttachTo(&operation);
  std::unique_ptr<Replica> replica;
  const std::string what = absl::StrCat("get ", artifact);
  absl::Status status =
      rpc::RetryUnavailable(operation, {.what = what.c_str()}, [&](const rpc::Attempt& attempt) {
        rpc::NoteRetry(span, attempt);
        auto got = GetOnce(core, operation, artifact, options);
        if (got.ok()) replica = *std::move(got);
        return got.status();
      });
  if (!status.ok()) return span.Record(Annotate(status, what));
  span.SetAttribute(otel::attr::kArtifactId, replica->artifact_id());
  span.SetAttribute(otel::attr::kReplicaId, replica->replica_id());
  return replica;
}

}  // namespace tensorcast::client
