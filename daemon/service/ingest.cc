#include "daemon/service/ingest.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/object_uri.h"
#include "core/safetensors/manifest_beside.h"
#include "daemon/node/node_messages.h"
#include "daemon/service/promised_digests.h"
#include "objects/client_credentials.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

absl::StatusOr<ImageLayout> LayoutOf(const v1::PutArtifactRequest& request) {
  ImageLayout layout;
  layout.tensors.reserve(request.tensors_size());
  for (const v1::PutArtifactRequest::TensorDescription& tensor : request.tensors()) {
    const DTypeInfo* dtype = FindDType(tensor.dtype());
    if (dtype == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("put tensor \"", tensor.name(), "\": the dtype \"",
                                                     tensor.dtype(),
                                                     "\" is unknown; use a dtype of safetensors"));
    }
    Tensor described{.name = tensor.name(),
                     .dtype = dtype->dtype,
                     .shape = {tensor.shape().begin(), tensor.shape().end()}};
    TC_ASSIGN_OR_RETURN(described.nbytes, TensorBytes(described.dtype, described.shape));
    layout.tensors.push_back(std::move(described));
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return layout;
}

}  // namespace

// What both kinds of new artifact have in common.
struct Ingester::NewArtifact {
  IngestRequest ingest;
  Publication publication;
  bool durable = false;
  bool pin = false;
  std::string archive;                       // the place; empty: none
  std::string path;                          // of an import
  std::string beside_uri;                    // where the manifest goes; empty: nowhere
  std::shared_ptr<const Manifest> beside;    // that lay beside the model; may be null
  std::vector<PromisedObject> promised;      // of an import from a hub
  std::shared_ptr<SafetensorsModel> second;  // of an import that is to be verified
  std::unique_ptr<NewArtifact> files;        // that the key binds with it; null: none
  DifferencePlan difference;                 // what is published with it
};

struct Ingester::Published {
  v1::PublishArtifactResponse response;
  v1::Difference difference;  // without an id: none
};

absl::Status Ingester::CheckNew(const v1::KeyBinding& binding, bool has_binding, bool durable) const {
  TC_RETURN_IF_ERROR(options_.node->CheckAccepting());
  TC_RETURN_IF_ERROR(Annotate(options_.link->CheckNotReplaced(), "put at this daemon"));
  if (has_binding && binding.key().empty()) {
    return absl::InvalidArgumentError("bind a key: the name of the key is empty; give a name");
  }
  if (durable && !options_.disk_tier) {
    return absl::FailedPreconditionError(
        "put with durable: this node has no disk tier; set daemon.disk_dir, or put without durable");
  }
  return absl::OkStatus();
}

absl::Status Ingester::CheckArchive(const std::string& archive, const std::string& beside) const {
  if (archive.empty() && beside.empty()) return absl::OkStatus();
  if (options_.archiver == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat(archive.empty() ? absl::StrCat("write the manifest to ", beside)
                                     : absl::StrCat("archive to ", archive),
                     ": daemon.archives is empty, so this daemon may not write to object stores; add the "
                     "place to daemon.archives"));
  }
  if (!archive.empty()) TC_RETURN_IF_ERROR(options_.archiver->CheckPlace(archive));
  return beside.empty() ? absl::OkStatus() : options_.archiver->CheckBeside(beside);
}

absl::Status Ingester::Archive(const RequestContext& context, const NewArtifact& artifact,
                               const ReplicaLease& lease) const {
  if (!artifact.beside_uri.empty()) {
    TC_RETURN_IF_ERROR(options_.archiver->WriteBeside(context, *lease.manifest(), artifact.beside_uri));
  }
  if (artifact.archive.empty()) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const Origin packed, options_.archiver->Archive(context, lease, artifact.archive));
  return publisher_.AddOrigin(context, *lease.manifest(), packed, artifact.publication.asking);
}

absl::StatusOr<NewReplica> Ingester::StoreDifference(const RequestContext& context, NewArtifact& artifact,
                                                     const ReplicaLease& target) const {
  DifferencePlan& plan = artifact.difference;
  if (plan.base == nullptr) return NewReplica();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<IngestRequest> request,
                      options_.differences->Encode(context, plan, target));
  if (request == nullptr) return NewReplica();
  absl::StatusOr<NewReplica> stored =
      new_replicas_.Make(context, std::move(*request), /*on_progress=*/nullptr);
  if (stored.ok()) return stored;
  // Whatever happened to the difference, the version itself is stored.
  TC_RETURN_IF_ERROR(context.Check("store the difference"));
  TC_RETURN_IF_ERROR(plan.GiveUp(
      "no_room", absl::StrCat("the difference could not be stored: ", stored.status().message())));
  return NewReplica();
}

absl::StatusOr<Ingester::Published> Ingester::PublishWithDifference(const RequestContext& context,
                                                                    NewArtifact& artifact,
                                                                    const ReplicaLease& lease) const {
  DifferencePlan& plan = artifact.difference;
  const std::string base_id = plan.base != nullptr ? plan.base->id() : "";
  TC_ASSIGN_OR_RETURN(const NewReplica stored, StoreDifference(context, artifact, lease));
  // To encode takes a while: what was evicted by force meanwhile must not be what a key names.
  TC_ASSIGN_OR_RETURN(const v1::Replica replica, DescribeReady(lease));
  Published published;
  if (stored.lease != nullptr) {
    absl::StatusOr<v1::PublishArtifactResponse> both =
        publisher_.Publish(context, *lease.manifest(), replica, artifact.publication, stored.lease.get());
    if (both.ok()) {
      stored.hold->Published();
      otel::metrics::kDifferences.Add(1, {"made"});
      const Manifest& difference = *stored.lease->manifest();
      published.response = *std::move(both);
      published.difference.set_artifact_id(difference.id());
      published.difference.set_base_id(base_id);
      published.difference.set_target_id(lease.manifest()->id());
      published.difference.set_image_bytes(difference.layout().image_bytes);
      return published;
    }
    // The replica of a difference that is not published goes with its hold.
    // The base may have been deleted meanwhile; where it is the key that refuses, the artifact alone is, too.
    if (!absl::IsFailedPrecondition(both.status()) || plan.required) return both.status();
    TC_ASSIGN_OR_RETURN(published.response,
                        publisher_.Publish(context, *lease.manifest(), replica, artifact.publication,
                                           /*difference=*/nullptr));
    TC_RETURN_IF_ERROR(plan.GiveUp("not_published", std::string(both.status().message())));
    return published;
  }
  TC_ASSIGN_OR_RETURN(published.response, publisher_.Publish(context, *lease.manifest(), replica,
                                                             artifact.publication, /*difference=*/nullptr));
  return published;
}

// The order of a put: NewReplicas makes the replica and holds it, the bytes are checked against what their
// source promised, and Finish packs the replica, stores the files beside the tensors and the difference, and
// publishes all of it. Until the publication a failure drops what this put made, by the holds. The steps
// after the publication (archive, pin) leave the artifact stored when they fail.
absl::StatusOr<v1::PutArtifactResult> Ingester::Store(const RequestContext& context, NewArtifact artifact,
                                                      const OnProgress& on_progress) const {
  TC_ASSIGN_OR_RETURN(const NewReplica stored,
                      new_replicas_.Make(context, std::move(artifact.ingest), on_progress));
  const std::unique_ptr<ReplicaLease>& lease = stored.lease;
  TC_RETURN_IF_ERROR(CheckPromises(context, artifact.promised, *lease));
  if (artifact.beside != nullptr) {
    TC_RETURN_IF_ERROR(CheckManifestBeside(artifact.path, *artifact.beside, *lease->manifest()));
  }
  if (artifact.second != nullptr) {
    TC_RETURN_IF_ERROR(ReadModelAgain(context, std::move(artifact.second), lease->manifest()));
  }
  TC_ASSIGN_OR_RETURN(v1::PutArtifactResult result, Finish(context, artifact, *lease, *stored.hold));
  // There is no report where the replica was here before.
  if (const std::optional<TransferReport> report = stored.pending->report(); report.has_value()) {
    *result.mutable_transfer() = ToProto(*report, options_.devices);
  }
  return result;
}

absl::StatusOr<v1::Replica> Ingester::DescribeReady(const ReplicaLease& lease) const {
  TC_ASSIGN_OR_RETURN(v1::Replica replica, DescribeReplica(*options_.engine, lease.replica_id()));
  if (replica.state() == v1::REPLICA_STATE_READY) return replica;
  return absl::UnavailableError(absl::StrCat("put ", lease.manifest()->id(), ": replica ", lease.replica_id(),
                                             " of the artifact is being dropped; put the artifact again"));
}

absl::StatusOr<v1::PutArtifactResult> Ingester::Finish(const RequestContext& context, NewArtifact& artifact,
                                                       const ReplicaLease& lease,
                                                       Publications::Hold& hold) const {
  if (artifact.durable) TC_RETURN_IF_ERROR(new_replicas_.PackToDisk(context, lease, hold));
  v1::PutArtifactResult result;
  TC_ASSIGN_OR_RETURN(*result.mutable_replica(), DescribeReady(lease));
  // The files come first, since the binding names them. Their lease keeps them until it does.
  std::unique_ptr<ReplicaLease> files_lease;
  if (const std::unique_ptr<NewArtifact> new_files = std::move(artifact.files); new_files != nullptr) {
    const absl::StatusOr<v1::PutArtifactResult> files =
        Store(context, std::move(*new_files), /*on_progress=*/nullptr);
    TC_RETURN_IF_ERROR(Annotate(files.status(), "store the files beside the tensors"));
    TC_ASSIGN_OR_RETURN(files_lease, options_.engine->LeaseReplica(files->replica().replica_id()));
    artifact.publication.files_id = files->artifact_id();
  }
  TC_ASSIGN_OR_RETURN(Published made, PublishWithDifference(context, artifact, lease));
  const v1::PublishArtifactResponse& published = made.response;
  hold.Published();
  // After the publication, so that a collection of archives finds the artifact in the catalog meanwhile.
  // The store of the archive had its retries: a client that tries again would only put the tensors again.
  if (const absl::Status archived = Archive(context, artifact, lease); !archived.ok()) {
    return rpc::WithoutRetry(
        Annotate(archived, absl::StrCat(published.artifact_id(), " is stored, but is not archived")));
  }
  if (artifact.pin) {
    TC_RETURN_IF_ERROR(Annotate(options_.engine->SetPinned(lease.replica_id(), true),
                                absl::StrCat(published.artifact_id(), " is stored, but is not pinned")));
    result.mutable_replica()->set_pinned(true);
  }
  const Origin& origin = artifact.publication.origin;
  if (options_.comparer != nullptr && !origin.objects.empty() && !origin.untraceable) {
    options_.comparer->Compare(published.artifact_id(), origin);
  }
  result.set_artifact_id(published.artifact_id());
  result.set_existed(published.existed());
  result.set_key_revision(published.key_revision());
  result.set_files_id(published.files_id());
  result.set_no_difference(artifact.difference.no_difference);
  if (!made.difference.artifact_id().empty()) *result.mutable_difference() = std::move(made.difference);
  return result;
}

absl::Status Ingester::PlanDifference(const RequestContext& context, const v1::DifferenceRequest& request,
                                      NewArtifact& artifact) const {
  if (options_.differences == nullptr) return absl::OkStatus();
  const v1::KeyBinding* binding = artifact.publication.binding;
  const std::string key = binding != nullptr ? binding->key() : "";
  TC_ASSIGN_OR_RETURN(artifact.difference,
                      options_.differences->Plan(context, request, key, artifact.ingest));
  return absl::OkStatus();
}

absl::StatusOr<v1::PutArtifactResult> Ingester::TakeMade(const RequestContext& context,
                                                         const std::string& artifact_id,
                                                         NewArtifact& artifact,
                                                         const OnProgress& on_progress) const {
  // The artifact is published already, so a failure of this put drops nothing.
  Publications::Hold hold(options_.publications, artifact_id, [](const std::string&) {});
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact_id);
  *request.mutable_location() = ToProto(artifact.ingest.location, options_.devices);
  request.set_wait_for_space(artifact.ingest.wait_for_space);
  TC_ASSIGN_OR_RETURN(v1::MaterializeReplicaResult made,
                      options_.materializer->Materialize(context, request, on_progress));
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<ReplicaLease> lease,
                      options_.engine->LeaseReplica(made.replica().replica_id()));
  // What this node read of the objects itself.
  if (!SameImage(lease->manifest()->layout(), artifact.ingest.new_layout) ||
      lease->manifest()->metadata() != artifact.ingest.new_metadata) {
    return absl::DataLossError(
        absl::StrCat("import the objects of ", artifact_id,
                     ": the artifact has other tensors than the objects; import the objects again"));
  }
  TC_ASSIGN_OR_RETURN(v1::PutArtifactResult result, Finish(context, artifact, *lease, hold));
  if (made.has_transfer()) *result.mutable_transfer() = std::move(*made.mutable_transfer());
  return result;
}

absl::StatusOr<v1::PutArtifactResult> Ingester::Put(const RequestContext& context,
                                                    const v1::PutArtifactRequest& request, Offer offer,
                                                    const std::string& asking,
                                                    const OnProgress& on_progress) const {
  TC_RETURN_IF_ERROR(CheckNew(request.binding(), request.has_binding(), request.durable()));
  TC_RETURN_IF_ERROR(CheckArchive(request.archive(), ""));
  TC_ASSIGN_OR_RETURN(const Location location, FromProto(request.location(), options_.devices));
  TC_ASSIGN_OR_RETURN(ImageLayout layout, LayoutOf(request));
  TC_ASSIGN_OR_RETURN(
      std::unique_ptr<ChunkSource> source,
      options_.sessions->SourceOf(std::move(offer), layout.image_bytes, [&](std::string_view replica_id) {
        return options_.engine->LeaseReplica(replica_id);
      }));
  NewArtifact artifact{
      .ingest = {.location = location,
                 .sources = MakeSingleSourceProvider(std::move(source)),
                 .wait_for_space = request.wait_for_space(),
                 .new_layout = std::move(layout),
                 .new_metadata = {request.metadata().begin(), request.metadata().end()}},
      .publication = {.binding = request.has_binding() ? &request.binding() : nullptr, .asking = asking},
      .durable = request.durable(),
      .pin = request.pin()};
  artifact.archive = request.archive();
  TC_RETURN_IF_ERROR(PlanDifference(context, request.difference(), artifact));
  return Store(context, std::move(artifact), on_progress);
}

absl::StatusOr<ModelPlaces> Ingester::PlacesOf(const v1::ImportArtifactRequest& request) const {
  ModelPlaces places{.own = options_.objects, .of_client = nullptr};
  if (request.offer_token().empty()) return places;
  TC_ASSIGN_OR_RETURN(places.offered, options_.sessions->TakeOfferedFiles(request.offer_token()));
  // Beside a URI the one offered file has the client's credentials. Otherwise the offered files are the
  // model.
  if (!IsObjectUri(request.path())) return places;
  const ForeignFds offered = std::exchange(places.offered, ForeignFds());
  TC_ASSIGN_OR_RETURN(objects::ClientCredentials credentials, objects::Take(offered.fds().front().get()));
  TC_ASSIGN_OR_RETURN(places.of_client, objects::OpenForClient(request.path(), std::move(credentials),
                                                               options_.environment, options_.read_rates));
  return places;
}

absl::StatusOr<v1::PutArtifactResult> Ingester::Import(const RequestContext& context,
                                                       const v1::ImportArtifactRequest& request,
                                                       const std::string& asking,
                                                       const OnProgress& on_progress) const {
  TC_RETURN_IF_ERROR(CheckNew(request.binding(), request.has_binding(), request.durable()));
  const bool beside = request.manifest_beside() && IsObjectUri(request.path());
  const std::string beside_uri = beside ? ManifestUriOf(request.path()) : "";
  TC_RETURN_IF_ERROR(CheckArchive(request.archive(), beside_uri));
  TC_ASSIGN_OR_RETURN(const Location location, FromProto(request.location(), options_.devices));
  TC_ASSIGN_OR_RETURN(ModelPlaces places, PlacesOf(request));
  absl::StatusOr<OpenedModel> opened_model = OpenModel(context, std::move(places), request);
  // What serves objects had its retries already.
  if (!opened_model.ok()) return rpc::WithoutRetry(std::move(opened_model).status());
  OpenedModel& model = *opened_model;
  const auto to_store = [&](OpenedModel opened) {
    NewArtifact artifact{.publication = {.asking = asking, .origin = std::move(opened.origin)},
                         .durable = request.durable(),
                         .pin = request.pin(),
                         .promised = std::move(opened.promised),
                         .second = std::move(opened.second)};
    Origin& origin = artifact.publication.origin;
    if (!origin.objects.empty()) origin.node_id = options_.node->id();
    artifact.ingest = {.location = location,
                       .sources = std::move(opened.sources),
                       .wait_for_space = request.wait_for_space(),
                       .new_layout = std::move(opened.layout),
                       .new_metadata = std::move(opened.metadata),
                       .new_kind = opened.kind};
    return artifact;
  };
  // These are taken from the model before `to_store` moves the rest of it.
  const std::shared_ptr<OpenedModel> files = std::move(model.files);
  const std::shared_ptr<const Manifest> found_beside = std::move(model.beside);
  const std::string import_id = std::move(model.import_id);
  NewArtifact artifact = to_store(std::move(model));
  if (request.has_binding()) artifact.publication.binding = &request.binding();
  artifact.archive = request.archive();
  artifact.path = request.path();
  artifact.beside_uri = beside_uri;
  artifact.beside = found_beside;
  TC_RETURN_IF_ERROR(PlanDifference(context, request.difference(), artifact));
  if (files != nullptr) {
    artifact.files = std::make_unique<NewArtifact>(to_store(std::move(*files)));
    artifact.files->archive = request.archive();
    // No GPU's memory is for files.
    if (location.kind == LocationKind::kGpu) artifact.files->ingest.location = {.kind = LocationKind::kCpu};
  }
  ImportJoins::Joined joined;
  // One that is to be verified reads the objects itself, twice.
  if (options_.joins != nullptr && !import_id.empty() && !request.verify()) {
    TC_ASSIGN_OR_RETURN(joined, options_.joins->Join(context, import_id, [&](const std::string& what) {
      TransferProgress progress;
      progress.waiting_for = what;
      if (on_progress != nullptr) on_progress(progress);
    }));
    if (joined.turn == nullptr) {
      const bool has_files = artifact.files != nullptr;
      absl::StatusOr<v1::PutArtifactResult> taken =
          TakeMade(context, joined.artifact_id, artifact, on_progress);
      // The artifact may be deleted by now, have no source that answers, or differ from the objects. Then
      // this import reads the objects itself. It has no turn, so others may read beside it.
      const bool gone = absl::IsNotFound(taken.status()) || absl::IsUnavailable(taken.status()) ||
                        absl::IsDataLoss(taken.status());
      // The files went to an ingest of their own, which has taken their readers: this import cannot begin
      // again.
      const bool files_taken = has_files && artifact.files == nullptr;
      if (!gone || files_taken) return taken;
      LOG(WARNING) << "This import reads its objects itself, since the artifact of another import of these "
                      "objects is not available: "
                   << taken.status();
    }
  }
  absl::StatusOr<v1::PutArtifactResult> result = Store(context, std::move(artifact), on_progress);
  if (joined.turn != nullptr && result.ok()) joined.turn->Made(result->artifact_id());
  return result;
}

}  // namespace tensorcast::daemon
