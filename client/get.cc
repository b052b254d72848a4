// Client::Get: the daemon materializes the replica and gives a ticket, the ticket is claimed on the handle
// socket, and what came by it is mapped or opened.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/steady_time.h"
#include "client/named.h"
#include "client/replica_state.h"
#include "client/session.h"
#include "core/artifact/tensor_selection.h"
#include "otel/api/span.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

// The daemon answers on the handle socket at once or not at all.
constexpr absl::Duration kClaimTimeout = absl::Seconds(10);
// Bounds how long a cancelled get waits to give its ticket back; that takes a millisecond.
constexpr absl::Duration kGiveBackTimeout = absl::Seconds(1);

absl::StatusOr<v1::MaterializeReplicaRequest> MakeRequest(std::string_view artifact,
                                                          const GetOptions& options,
                                                          const DeviceRuntime* devices) {
  TC_RETURN_IF_ERROR(CheckNamed(artifact));
  TC_ASSIGN_OR_RETURN(const Location location, Location::Parse(options.location));
  v1::MaterializeReplicaRequest request;
  if (IsArtifactId(artifact)) {
    request.set_artifact_id(std::string(artifact));
  } else {
    request.set_key(std::string(artifact));
  }
  *request.mutable_location() = rpc::ToProto(location);
  request.set_lane(options.lane);
  request.set_wait_for_space(options.wait_for_space);
  request.set_confirmed(options.confirmed);
  request.set_pin(options.pin);
  TC_RETURN_IF_ERROR(CheckTensorPatterns(options.tensors));
  request.mutable_tensors()->Assign(options.tensors.begin(), options.tensors.end());
  // A packed file is not attached to: making it is all that is asked.
  request.set_attach(options.attach && location.kind != LocationKind::kDisk);
  if (request.attach() && location.kind == LocationKind::kGpu && devices == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attach at ", options.location, ": no device runtime opens GPU memory; set ClientOptions::devices"));
  }
  return request;
}

// A ticket holds its lease until it is claimed or has expired, seconds after its caller gave up. One that was
// claimed already is nothing to the daemon.
void GiveBack(const std::string& handle_socket, const std::string& ticket) {
  ClaimedReplica::Claim(handle_socket, ticket, SteadyNow() + kGiveBackTimeout).IgnoreError();
}

absl::StatusOr<v1::MaterializeReplicaResult> Materialize(
    const DaemonLink& link, const RequestContext& context, const v1::MaterializeReplicaRequest& request,
    const GetOptions& options, std::string& handle_socket, rpc::PieceJoiner& manifest) {
  std::optional<v1::MaterializeReplicaResult> result;
  const auto on_response = [&](v1::MaterializeReplicaResponse&& response) {
    if (response.has_handle_socket()) {
      // Before anything is made: the daemon of another host is refused here, and no replica is fetched for
      // nothing.
      handle_socket = response.handle_socket();
      return link.CheckHandleSocket(handle_socket);
    }
    if (response.has_progress() && options.on_progress) {
      options.on_progress(rpc::FromProto(response.progress()));
    }
    if (response.has_result()) result = std::move(*response.mutable_result());
    return response.has_manifest_piece() ? manifest.Add(response.manifest_piece()) : absl::OkStatus();
  };
  absl::Status status =
      rpc::CallServerStream(link.daemon(), &v1::StoreDaemon::Stub::MaterializeReplica, context, request,
                            on_response, {.retry_for = absl::ZeroDuration(), .what = "materializing"});
  if (!status.ok()) {
    if (result.has_value() && !result->ticket().empty()) GiveBack(handle_socket, result->ticket());
    return status;
  }
  if (!result.has_value()) return absl::InternalError("the daemon sent no result; get it again");
  return *std::move(result);
}

// Of those that were known, or the one that came.
absl::StatusOr<std::shared_ptr<const Manifest>> ManifestOf(const std::string& artifact_id,
                                                           const Manifests& known, const std::string& bytes) {
  for (const std::shared_ptr<const Manifest>& manifest : known) {
    if (manifest->id() == artifact_id) return manifest;
  }
  auto manifest = Manifest::Decode(bytes);
  // The id is the hash of what the manifest says, so this proves it, from any sender.
  if (manifest.ok() && (*manifest)->id() == artifact_id) return manifest;
  return absl::DataLossError(absl::StrCat("the manifest that came for ", artifact_id, " is not its own: ",
                                          manifest.ok() ? (*manifest)->id() : manifest.status().ToString()));
}

absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const RequestContext& context,
                                                      const std::string& handle_socket,
                                                      const v1::MaterializeReplicaResult& result) {
  auto claimed =
      ClaimedReplica::Claim(handle_socket, result.ticket(),
                            std::min(context.deadline, SteadyNow() + kClaimTimeout), context.cancellation);
  if (claimed.ok()) return claimed;
  if (!context.Check("claiming").ok()) GiveBack(handle_socket, result.ticket());
  return Annotate(claimed.status(),
                  absl::StrCat("claiming replica ", result.replica().replica_id(), " on ", handle_socket));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Client::GetOnce(const RequestContext& context,
                                                         std::string_view artifact,
                                                         const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(v1::MaterializeReplicaRequest request,
                      MakeRequest(artifact, options, session_->devices));
  const Manifests known = session_->manifests.All();
  request.set_manifest(true);
  for (const std::shared_ptr<const Manifest>& manifest : known) request.add_known_manifests(manifest->id());
  std::string handle_socket;
  rpc::PieceJoiner bytes;
  TC_ASSIGN_OR_RETURN(v1::MaterializeReplicaResult result,
                      Materialize(*session_->link, context, request, options, handle_socket, bytes));
  TC_ASSIGN_OR_RETURN(auto state, Replica::State::Of(std::move(result)));
  // The ticket is good for seconds only, so it goes first.
  std::unique_ptr<ClaimedReplica> claimed;
  if (request.attach()) {
    TC_ASSIGN_OR_RETURN(claimed, Claim(context, handle_socket, state->result));
    state->result.clear_ticket();  // it was good for once
  }
  TC_ASSIGN_OR_RETURN(state->manifest, ManifestOf(state->artifact_id(), known, bytes.bytes()));
  session_->manifests.Keep(state->manifest);
  TC_ASSIGN_OR_RETURN(state->chosen, SelectTensors(*state->manifest, options.tensors));
  if (claimed != nullptr) {
    TC_RETURN_IF_ERROR(state->Attach(std::move(claimed), session_->devices, options.copy_on_write));
  }
  if (!state->image.empty()) session_->leases.Watch(state->artifact_id(), state->claimed);
  state->MakeViews();
  return std::unique_ptr<Replica>(new Replica(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Replica>> Client::Get(const RequestContext& context, std::string_view artifact,
                                                     const GetOptions& options) {
  RequestContext operation = OperationContext(context);
  otel::Span span("Client/Get", operation,
                  {{otel::attr::kOperationType, "get"},
                   {otel::attr::kLocation, options.location.substr(0, options.location.find(':'))}});
  span.AttachTo(&operation);
  std::unique_ptr<Replica> replica;
  const std::string what = absl::StrCat("get ", artifact);
  absl::Status status =
      // The get as a whole is tried again, never one step of it: a ticket or a replica id means nothing to a
      // daemon that was restarted between the steps.
      rpc::RetryUnavailable(operation, {.what = kAsking}, [&](const rpc::Attempt& attempt) {
        rpc::NoteRetry(span, attempt);
        auto got = GetOnce(operation, artifact, options);
        if (got.ok()) replica = *std::move(got);
        return got.status();
      });
  if (!status.ok()) return span.Record(Annotate(status, what));
  span.SetAttribute(otel::attr::kArtifactId, replica->artifact_id());
  span.SetAttribute(otel::attr::kReplicaId, replica->replica_id());
  return replica;
}

}  // namespace tensorcast::client
