#include "daemon/service/materialize.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/node/node_messages.h"
#include "daemon/sources/source_finder.h"
#include "daemon/telemetry/telemetry.h"

namespace tensorcast::daemon {
namespace {

// Which artifact a request means, and the key when it was asked for by key.
struct Asked {
  std::string artifact_id;
  std::string key;
  uint64_t key_revision = 0;
  bool key_unconfirmed = false;
};

absl::StatusOr<Asked> WhichArtifact(const NodeParts& parts, const RequestContext& context,
                                    const std::string& artifact_id, const std::string& key) {
  if (!artifact_id.empty()) {
    if (!IsArtifactId(artifact_id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", artifact_id, "\" is not an artifact id (tc1:...)"));
    }
    return Asked{.artifact_id = artifact_id};
  }
  if (key.empty()) {
    return absl::InvalidArgumentError("neither an artifact id nor a key was given");
  }
  TC_ASSIGN_OR_RETURN(const ResolvedKey resolved, parts.known_keys->Resolve(context, key));
  return Asked{.artifact_id = resolved.key.artifact_id(),
               .key = key,
               .key_revision = resolved.key.revision(),
               .key_unconfirmed = resolved.unconfirmed};
}

absl::StatusOr<std::shared_ptr<const Manifest>> GetManifest(const NodeParts& parts,
                                                            const RequestContext& context,
                                                            const Asked& asked) {
  absl::StatusOr<std::shared_ptr<const Manifest>> held = parts.engine->FindManifest(asked.artifact_id);
  if (held.ok()) {
    return held;
  }
  std::string bytes;
  const absl::Status fetched = parts.access.global_store->FetchManifest(context, asked.artifact_id, &bytes);
  if (absl::IsUnavailable(fetched)) {
    const std::string key = asked.key_unconfirmed
                                ? absl::StrCat(", which key ", asked.key, " meant when it was last known,")
                                : "";
    return Annotate(fetched, absl::StrCat("this node has no replica of ", asked.artifact_id, key));
  }
  TC_RETURN_IF_ERROR(fetched);
  return DecodeManifest(bytes, asked.artifact_id);
}

absl::Status CheckLane(const NodeParts& parts, const std::string& lane) {
  if (lane.empty() || lane == kLocalLane || lane == kDiskLane || parts.access.FindLane(lane) != nullptr) {
    return absl::OkStatus();
  }
  std::string known = absl::StrCat(kLocalLane, ", ", kDiskLane);
  for (const transport::Transport* transport : parts.access.lanes) {
    absl::StrAppend(&known, ", ", transport->name());
  }
  return absl::InvalidArgumentError(absl::StrCat("this node has no lane \"", lane, "\"; it has ", known));
}

absl::Status SetReplicaOf(const NodeParts& parts, const ReplicaLease& lease, v1::Replica* out) {
  TC_ASSIGN_OR_RETURN(const ReplicaInfo info, parts.FindReplica(lease.replica_id()));
  SetReplica(info, parts.node_id, parts.devices, out);
  return absl::OkStatus();
}

// The grant of another daemon of this host, in the place of OpenPull.
absl::Status CheckPeerAttach(const NodeParts& parts, const v1::AttachReplicaRequest& request) {
  if (request.transport_id().empty()) {
    return absl::OkStatus();
  }
  return parts.servings->CheckGrant(PullOpening{.transport_id = request.transport_id(),
                                                .grant_token = request.grant_token(),
                                                .replica_id = request.replica_id(),
                                                .lane = std::string(kLocalLane)});
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseFor(const NodeParts& parts, const RequestContext& context,
                                                       const v1::AttachReplicaRequest& request) {
  if (!request.replica_id().empty()) {
    return parts.engine->LeaseReplica(request.replica_id());
  }
  TC_ASSIGN_OR_RETURN(const Location location, GetLocation(request.location(), parts.devices));
  TC_ASSIGN_OR_RETURN(const Asked asked, WhichArtifact(parts, context, request.artifact_id(), request.key()));
  if (asked.key_unconfirmed) {
    // The answer of this call has no place for that mark.
    return absl::UnavailableError(absl::StrCat("the global store does not answer, and what key ", asked.key,
                                               " means is unconfirmed: materialize it, or attach to ",
                                               asked.artifact_id));
  }
  return parts.engine->LeaseArtifact(asked.artifact_id, location);
}

}  // namespace

absl::StatusOr<v1::MaterializeReplicaResult> MaterializeReplica(const NodeParts& parts,
                                                                const RequestContext& context,
                                                                const v1::MaterializeReplicaRequest& request,
                                                                const OnProgress& on_progress) {
  TC_RETURN_IF_ERROR(parts.CheckAccepting());
  TC_RETURN_IF_ERROR(CheckLane(parts, request.lane()));
  TC_ASSIGN_OR_RETURN(const Location location, GetLocation(request.location(), parts.devices));
  TC_ASSIGN_OR_RETURN(const Asked asked, WhichArtifact(parts, context, request.artifact_id(), request.key()));
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, GetManifest(parts, context, asked));

  IngestRequest ingest{
      .manifest = manifest,
      .location = location,
      .sources = MakeSourceProvider(&parts.access,
                                    {.manifest = manifest, .destination = location, .lane = request.lane()}),
      .wait_for_space = request.wait_for_space()};
  TC_ASSIGN_OR_RETURN(std::unique_ptr<PendingReplica> pending,
                      parts.engine->Ingest(context, std::move(ingest)));
  otel::Span joined = JoinSpan(context, *pending);
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ReplicaLease> lease,
                      joined.Record(Await(context, *pending, on_progress)));
  joined.End();

  v1::MaterializeReplicaResult result;
  result.set_artifact_id(asked.artifact_id);
  result.set_key_revision(asked.key_revision);
  result.set_key_unconfirmed(asked.key_unconfirmed);
  result.set_shared(pending->shared());
  const std::optional<TransferReport> report = pending->report();
  result.set_already_present(!report.has_value());
  if (report.has_value()) {
    SetReport(*report, parts.devices, result.mutable_transfer());
  }
  TC_RETURN_IF_ERROR(SetReplicaOf(parts, *lease, result.mutable_replica()));
  if (request.attach()) {
    TC_ASSIGN_OR_RETURN(*result.mutable_ticket(), parts.sessions->IssueTicket(std::move(lease)));
  }
  return result;
}

absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(const NodeParts& parts, const RequestContext& context,
                                                        const v1::AttachReplicaRequest& request) {
  TC_RETURN_IF_ERROR(parts.CheckAccepting());
  TC_RETURN_IF_ERROR(CheckPeerAttach(parts, request));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ReplicaLease> lease, LeaseFor(parts, context, request));
  v1::AttachReplicaResponse response;
  TC_RETURN_IF_ERROR(SetReplicaOf(parts, *lease, response.mutable_replica()));
  response.set_made_by(lease->made_by().ToTraceparent());
  if (request.transport_id().empty()) {
    TC_ASSIGN_OR_RETURN(*response.mutable_ticket(), parts.sessions->IssueTicket(std::move(lease)));
  } else {
    const auto receiver = TraceContext::FromTraceparent(request.traceparent());
    auto record = std::make_shared<AttachRecord>(context.trace, receiver.value_or(TraceContext()),
                                                 request.transport_id(), lease->manifest()->id());
    TC_ASSIGN_OR_RETURN(*response.mutable_ticket(),
                        parts.sessions->IssueTicket(std::move(lease), Holder::kDaemon, std::move(record)));
  }
  response.set_handle_socket(parts.handles->path());
  return response;
}

}  // namespace tensorcast::daemon
