#include "daemon/service/materialize.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "core/artifact/tensor_selection.h"
#include "daemon/node/node_messages.h"
#include "daemon/telemetry/telemetry.h"

namespace tensorcast::daemon {
namespace {

// What may have become of a version that was replaced, while it was brought.
bool MayBeGone(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsFailedPrecondition(status) || absl::IsDataLoss(status);
}

absl::Status NoCopyLeft(std::string_view artifact_id) {
  return absl::NotFoundError(absl::StrCat(
      "find a copy of ", artifact_id,
      ": no live node has a copy or a file that the artifact was imported from; start a node that has "
      "one, or put the artifact again"));
}

}  // namespace

absl::StatusOr<v1::ResolveKeyResponse> Materializer::FindTarget(const RequestContext& context,
                                                                const std::string& artifact_id,
                                                                const std::string& key, bool confirmed,
                                                                std::string* manifest) const {
  if (artifact_id.empty()) {
    if (!key.empty()) return FindKey(context, key, confirmed, manifest);
    return absl::InvalidArgumentError(
        "find an artifact: neither an artifact id nor a key was given; give one of the two");
  }
  if (!IsArtifactId(artifact_id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "find \"", artifact_id, "\": the text is not an artifact id; give an artifact id (tc2:...)"));
  }
  v1::ResolveKeyResponse target;
  target.mutable_key()->set_artifact_id(artifact_id);
  return target;
}

absl::StatusOr<v1::ResolveKeyResponse> Materializer::FindKey(const RequestContext& context,
                                                             const std::string& key, bool confirmed,
                                                             std::string* manifest) const {
  // Where the key probably still names what this node has, its manifest need not travel, and a call without a
  // stream is faster.
  if (manifest != nullptr) {
    const std::optional<v1::Key> known = options_.known_keys->Find(key);
    if (known.has_value() && options_.engine->FindManifest(known->artifact_id()).ok()) manifest = nullptr;
  }
  return options_.known_keys->Resolve(context, key, confirmed, manifest);
}

absl::Status Materializer::CheckLane(const std::string& lane) const {
  if (lane.empty() || std::ranges::find(options_.lanes, lane) != options_.lanes.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("materialize over the lane \"", lane,
                                                 "\": this node does not have that lane; choose one of ",
                                                 absl::StrJoin(options_.lanes, ", ")));
}

absl::Status Materializer::ChooseChunks(const google::protobuf::RepeatedPtrField<std::string>& tensors,
                                        IngestRequest& ingest) {
  if (tensors.empty()) return absl::OkStatus();
  const std::vector<std::string> patterns(tensors.begin(), tensors.end());
  TC_ASSIGN_OR_RETURN(TensorSelection selection, SelectTensors(*ingest.manifest, patterns));
  if (selection.chunks.size() == ingest.layout().chunk_count()) return absl::OkStatus();
  if (ingest.location.kind != LocationKind::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("materialize a part of ", ingest.artifact_id(), ": ", ingest.location.ToString(),
                     " holds only whole artifacts; get these tensors at cpu, or get all tensors"));
  }
  ingest.chunks = std::move(selection.chunks);
  return absl::OkStatus();
}

absl::Status Materializer::CheckPeerAttach(const v1::AttachReplicaRequest& request,
                                           const std::string& receiver) const {
  if (request.grant_id().empty()) {
    if (receiver.empty()) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("attach as node ", receiver,
                     ": a node needs a grant and this call has no grant; ask the global store for a grant"));
  }
  // A daemon of this host pulls by attaching, so its grant is checked as OpenPull would check it.
  v1::OpenPullRequest asked;
  asked.set_grant_id(request.grant_id());
  asked.set_grant_token(request.grant_token());
  asked.set_replica_id(request.replica_id());
  asked.set_lane(std::string(kLocalLane));
  return options_.servings->CheckGrant(asked, receiver).status();
}

// On a ready replica, or on a partial one that holds what is asked for. Another daemon, under its grant,
// takes what there is of one that fills or is partial, follows it, and lets go when it is told to.
absl::StatusOr<std::unique_ptr<ReplicaLease>> Materializer::LeaseFor(
    const RequestContext& context, const v1::AttachReplicaRequest& request) const {
  const std::vector<std::string> tensors(request.tensors().begin(), request.tensors().end());
  TC_RETURN_IF_ERROR(CheckTensorPatterns(tensors));
  absl::StatusOr<std::unique_ptr<ReplicaLease>> whole;
  std::function<bool(const ReplicaInfo&)> is_meant;
  if (!request.grant_id().empty()) return options_.engine->LeaseToServe(request.replica_id());
  if (!request.replica_id().empty()) {
    whole = options_.engine->LeaseReplica(request.replica_id());
    is_meant = [&request](const ReplicaInfo& replica) { return replica.id == request.replica_id(); };
  } else {
    TC_ASSIGN_OR_RETURN(const Location location, FromProto(request.location(), options_.devices));
    TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse target,
                        FindTarget(context, request.artifact_id(), request.key(), request.confirmed()));
    const std::string& artifact_id = target.key().artifact_id();
    if (target.unconfirmed()) {
      // The answer of this call has no place for that mark.
      return absl::UnavailableError(
          absl::StrCat("attach to key ", request.key(),
                       ": the global store does not answer, so this daemon cannot confirm that the "
                       "key is bound to ",
                       artifact_id, "; materialize the key, or attach to the artifact id"));
    }
    whole = options_.engine->LeaseArtifact(artifact_id, location);
    is_meant = [location, artifact_id](const ReplicaInfo& replica) {
      return replica.artifact_id == artifact_id && replica.location == location;
    };
  }
  if (whole.ok()) return CheckHolds(*std::move(whole), tensors);
  for (const ReplicaInfo& replica : options_.engine->ListReplicas()) {
    if (replica.state != ReplicaState::kPartial || !is_meant(replica)) continue;
    TC_ASSIGN_OR_RETURN(std::unique_ptr<ReplicaLease> lease, options_.engine->LeaseFilling(replica.id));
    return CheckHolds(std::move(lease), tensors);
  }
  return whole.status();
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> Materializer::CheckHolds(std::unique_ptr<ReplicaLease> lease,
                                                                       std::span<const std::string> tensors) {
  const std::shared_ptr<const Availability>& there = lease->availability();
  if (there == nullptr && tensors.empty()) return lease;
  TC_ASSIGN_OR_RETURN(const TensorSelection selection, SelectTensors(*lease->manifest(), tensors));
  if (there == nullptr) return lease;
  const auto missing =
      std::ranges::count_if(selection.chunks, [&](uint32_t chunk) { return !there->Has(chunk); });
  if (missing == 0) return lease;
  return absl::FailedPreconditionError(absl::StrCat(
      "attach to replica ", lease->replica_id(), " of ", lease->manifest()->id(), ": the replica holds only ",
      there->count(), " of ", there->chunks(), " chunks, and lacks ", missing, " of the ",
      selection.chunks.size(),
      " requested chunks; get these tensors instead: a get brings the missing chunks and then attaches"));
}

absl::StatusOr<v1::MaterializeReplicaResult> Materializer::Materialize(
    const RequestContext& context, const v1::MaterializeReplicaRequest& request,
    const OnProgress& on_progress, std::shared_ptr<const Manifest>* manifest) const {
  const AdvanceMode advance = request.advance() ? AdvanceMode::kRequired : AdvanceMode::kBeside;
  return MaterializeBy(context, request, advance, on_progress, manifest);
}

absl::Status Materializer::Fulfil(const RequestContext& context, const v1::ReplicationTask& task,
                                  const OnProgress& on_progress) const {
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(task.artifact_id());
  *request.mutable_location() = task.location();
  const AdvanceMode advance = options_.advance_tasks ? AdvanceMode::kPreferred : AdvanceMode::kBeside;
  return MaterializeBy(context, request, advance, on_progress, nullptr).status();
}

absl::StatusOr<v1::MaterializeReplicaResult> Materializer::MaterializeBy(
    const RequestContext& context, const v1::MaterializeReplicaRequest& request, AdvanceMode advance,
    const OnProgress& on_progress, std::shared_ptr<const Manifest>* manifest) const {
  TC_RETURN_IF_ERROR(options_.node->CheckAccepting());
  TC_RETURN_IF_ERROR(CheckLane(request.lane()));
  std::string bytes;  // of the manifest, as far as they came with the key
  TC_ASSIGN_OR_RETURN(v1::ResolveKeyResponse target,
                      FindTarget(context, request.artifact_id(), request.key(), request.confirmed(), &bytes));
  while (true) {
    const std::string& artifact_id = target.key().artifact_id();
    absl::StatusOr<v1::MaterializeReplicaResult> result =
        MaterializeTarget(context, target, bytes, request, advance, on_progress, manifest);
    // Also where the pool is full: memory is reserved before sources are asked.
    if (absl::IsResourceExhausted(result.status()) || absl::IsNotFound(result.status())) {
      const absl::StatusOr<Copies> copies = options_.global_store->FindCopies(context, artifact_id);
      if (copies.ok() && copies->empty()) return NoCopyLeft(artifact_id);
    }
    if (request.key().empty() || !MayBeGone(result.status())) return result;
    // A version that was replaced may be deleted while it is brought. Then what counts is what the key names
    // now; where that is the same, the failure is the answer.
    absl::StatusOr<v1::ResolveKeyResponse> now =
        FindTarget(context, "", request.key(), request.confirmed(), &bytes);
    if (!now.ok() || now->key().artifact_id() == artifact_id) return result;
    // Each further round needs that the key was bound again meanwhile, so the loop ends with the bindings.
    VLOG(1) << "key " << request.key() << " moved from " << artifact_id << " to " << now->key().artifact_id()
            << " while that was brought: " << result.status();
    target = *std::move(now);
  }
}

// Brings one artifact. Its manifest comes first; where only the id is known, one call brings the manifest and
// the path of differences. Then the differences are brought, and only then the ingest of the target is
// requested. So no ingest that waits for its room or turn waits for another one that does.
absl::StatusOr<v1::MaterializeReplicaResult> Materializer::MaterializeTarget(
    const RequestContext& context, const v1::ResolveKeyResponse& target, const std::string& manifest_bytes,
    const v1::MaterializeReplicaRequest& request, AdvanceMode advance, const OnProgress& on_progress,
    std::shared_ptr<const Manifest>* used) const {
  TC_ASSIGN_OR_RETURN(const Location location, FromProto(request.location(), options_.devices));
  TC_RETURN_IF_ERROR(CheckAdvance(request, location));
  // A request that names a lane wants all bytes by that lane.
  const bool may_rebuild =
      options_.differences != nullptr && location.kind != LocationKind::kDisk && request.lane().empty();
  const std::string& artifact_id = target.key().artifact_id();
  std::string received = manifest_bytes;
  std::optional<FoundDifferences> differences;
  if (may_rebuild && request.tensors().empty() && received.empty() &&
      !options_.engine->FindManifest(artifact_id).ok()) {
    differences = options_.differences->Look(context, artifact_id, &received);
  }
  absl::StatusOr<std::shared_ptr<const Manifest>> found =
      FindManifest(context, *options_.engine, *options_.global_store, artifact_id, received);
  if (!found.ok() && target.unconfirmed()) {
    return Annotate(found.status(), absl::StrCat("materialize ", artifact_id, ", which key ", request.key(),
                                                 " meant when it was last known"));
  }
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, std::move(found));
  if (used != nullptr) *used = manifest;

  IngestRequest ingest{.manifest = manifest,
                       .location = location,
                       .sources = options_.sources->Find(
                           {.manifest = manifest, .destination = location, .lane = request.lane()}),
                       .wait_for_space = request.wait_for_space()};
  TC_RETURN_IF_ERROR(ChooseChunks(request.tensors(), ingest));
  if (may_rebuild && !ingest.chunks.has_value()) {
    std::optional<DifferencePaths::WantedAdvance> wanted;
    if (advance != AdvanceMode::kBeside) {
      wanted =
          DifferencePaths::WantedAdvance{.location = location, .required = advance == AdvanceMode::kRequired};
    }
    DifferencePaths::Prepared prepared = options_.differences->Prepare(
        context, manifest, std::move(ingest.sources), wanted, std::move(differences));
    ingest.sources = std::move(prepared.sources);
    ingest.advance = std::move(prepared.advance);
  }
  std::unique_ptr<PendingReplica> pending;
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease;
  // A request for a part joins an ingest that is under way and brings more. When that fails, the part may be
  // there all the same, or be had without the rest: in less memory, or from a source that has only that part.
  // So the request is tried once more, and ends as that try does.
  for (bool may_repeat = ingest.chunks.has_value();; may_repeat = false) {
    TC_ASSIGN_OR_RETURN(pending, options_.engine->Ingest(context, ingest));
    lease = Await(context, *pending, on_progress);
    if (lease.ok()) break;
    const bool failed_for_others = pending->shared() && pending->report().has_value();
    if (!may_repeat || !failed_for_others) {
      if (ingest.advance == nullptr) return lease.status();
      return NameReaders(lease.status(), *ingest.advance, location, *options_.engine, *options_.sessions,
                         *options_.servings);
    }
  }
  TC_RETURN_IF_ERROR(context.Check("materialize"));  // no client is left to claim a ticket

  v1::MaterializeReplicaResult result;
  result.set_artifact_id(manifest->id());
  result.set_key_revision(target.key().revision());
  result.set_key_unconfirmed(target.unconfirmed());
  result.set_files_id(target.key().files_id());
  result.set_shared(pending->shared());
  const std::optional<TransferReport> report = pending->report();
  result.set_already_present(!report.has_value());
  if (report.has_value()) *result.mutable_transfer() = ToProto(*report, options_.devices);
  // Under the lease, so that it cannot be evicted before.
  if (request.pin()) TC_RETURN_IF_ERROR(options_.engine->SetPinned((*lease)->replica_id(), true));
  TC_ASSIGN_OR_RETURN(*result.mutable_replica(), DescribeReplica(*options_.engine, (*lease)->replica_id()));
  if (request.attach()) {
    TC_ASSIGN_OR_RETURN(*result.mutable_ticket(), options_.sessions->IssueTicket(*std::move(lease)));
  }
  return result;
}

absl::StatusOr<std::unique_ptr<PendingReplica>> Materializer::BeginLive(
    const RequestContext& context, const std::string& artifact_id, const ReplicaLease& base,
    std::shared_ptr<CommitGate> gate, absl::FunctionRef<absl::Status()> check) const {
  TC_RETURN_IF_ERROR(options_.node->CheckAccepting());
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest,
                      FindManifest(context, *options_.engine, *options_.global_store, artifact_id));
  if (!SameImage(manifest->layout(), base.manifest()->layout())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the new version has other tensors than ", base.manifest()->id(),
                     ", or has them at other offsets; get the new version without live=True"));
  }
  TC_ASSIGN_OR_RETURN(const v1::Replica replica, DescribeReplica(*options_.engine, base.replica_id()));
  if (replica.pinned()) {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", base.replica_id(), " is pinned; unpin the replica first"));
  }
  const Location location = base.location();
  IngestRequest ingest{
      .manifest = manifest,
      .location = location,
      .sources = options_.sources->Find({.manifest = manifest, .destination = location}),
      .advance = std::make_shared<Advance>(base.manifest()->id(), base.replica_id(), std::move(gate))};
  if (options_.differences != nullptr) {
    ingest.sources = options_.differences->Prepare(context, manifest, std::move(ingest.sources)).sources;
  }
  RequestContext own = context;
  own.deadline = SteadyTime::InfiniteFuture();  // its holders commit when they like
  // The ingest ends with its PendingReplica, not with the call that began it.
  own.cancellation = Cancellation();
  while (true) {
    TC_RETURN_IF_ERROR(check());
    TC_ASSIGN_OR_RETURN(std::unique_ptr<PendingReplica> pending, options_.engine->Ingest(own, ingest));
    if (!pending->shared()) return pending;
    // Another request brings it to this node. The replica that this makes is then the source. Where that
    // request fails, this one brings the version itself.
    const absl::Status brought = pending->Wait(context).status();
    if (!brought.ok()) TC_RETURN_IF_ERROR(context.Check("bring the version"));
  }
}

absl::StatusOr<v1::AttachReplicaResponse> Materializer::Attach(const RequestContext& context,
                                                               const v1::AttachReplicaRequest& request,
                                                               const std::string& receiver) const {
  TC_RETURN_IF_ERROR(options_.node->CheckAccepting());
  TC_RETURN_IF_ERROR(CheckPeerAttach(request, receiver));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ReplicaLease> lease, LeaseFor(context, request));
  v1::AttachReplicaResponse response;
  TC_ASSIGN_OR_RETURN(*response.mutable_replica(), DescribeReplica(*options_.engine, lease->replica_id()));
  response.set_made_by(lease->made_by().ToTraceparent());
  if (request.grant_id().empty()) {
    TC_ASSIGN_OR_RETURN(*response.mutable_ticket(), options_.sessions->IssueTicket(std::move(lease)));
  } else {
    const auto receiver = TraceContext::FromTraceparent(request.traceparent());
    const Manifest& manifest = *lease->manifest();
    auto record =
        std::make_shared<AttachRecord>(context.trace, receiver.value_or(TraceContext()), request.grant_id(),
                                       manifest.id(), manifest.layout().image_bytes);
    TC_ASSIGN_OR_RETURN(*response.mutable_ticket(),
                        options_.sessions->IssueTicket(std::move(lease), Holder::kDaemon, std::move(record)));
  }
  response.set_handle_socket(options_.handle_socket);
  return response;
}

}  // namespace tensorcast::daemon
