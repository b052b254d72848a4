#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "global_store/service/convert.h"
#include "global_store/service/handlers.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

ArtifactRecord RecordOf(const Manifest& manifest) {
  ArtifactRecord record{.artifact_id = manifest.id(),
                        .kind = manifest.kind(),
                        .image_bytes = manifest.layout().image_bytes,
                        .chunk_bytes = manifest.layout().chunk_bytes,
                        .tensor_count = static_cast<uint32_t>(manifest.layout().tensors.size()),
                        .tensors_digest = manifest.DigestOfTensors()};
  if (manifest.kind() == ArtifactKind::kDifference) {
    record.base_id = manifest.metadata().at("base");  // both are ids: Manifest::Decode has checked
    record.target_id = manifest.metadata().at("target");
  }
  return record;
}

// `difference` may be null.
absl::StatusOr<PublishRequest> RequestOf(const v1::PublishArtifactRequest& first, const Manifest& manifest,
                                         const Manifest* difference) {
  PublishRequest request{.node = FromProto(first.node()),
                         .artifact = RecordOf(manifest),
                         .replica = std::nullopt,
                         .origin = std::nullopt,
                         .key = first.key(),
                         .expected_revision = std::nullopt,
                         .keep = std::nullopt,
                         .files_id = first.files_id()};
  if (first.has_expected_revision()) request.expected_revision = first.expected_revision();
  if (first.has_keep()) request.keep = first.keep();
  if (first.has_replica()) {
    TC_ASSIGN_OR_RETURN(request.replica, rpc::FromProto(first.replica()));
  }
  if (first.has_origin()) {
    if (first.origin().objects().empty()) {
      return absl::InvalidArgumentError(
          "publish an artifact: the origin names no files; name the files that were imported");
    }
    request.origin = rpc::FromProto(first.origin());
  }
  if (difference != nullptr) request.difference = RecordOf(*difference);
  if (first.has_difference_replica()) {
    TC_ASSIGN_OR_RETURN(request.difference_replica, rpc::FromProto(first.difference_replica()));
  }
  return request;
}

// A daemon publishes what it has encoded or decoded itself, so the cause is another release.
absl::StatusOr<std::shared_ptr<const Manifest>> DecodePublished(std::string_view what,
                                                                const v1::NodeIdentity& node,
                                                                std::string_view bytes) {
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(bytes);
  if (manifest.ok()) return manifest;
  // The remedy behind the ';' is for the maker of a manifest.
  const std::string_view why = manifest.status().message();
  return absl::Status(
      manifest.status().code(),
      absl::StrCat("publish ", what, " from node ", node.node_id(), ": ", why.substr(0, why.find(';')),
                   "; run one release on that node and on the global store"));
}

}  // namespace

// A publication is a stream: the first message names artifact and node, all of them carry pieces of the
// manifest, then of that of a difference, if any.
absl::Status Handlers::Publication::Add(v1::PublishArtifactRequest message) {
  TC_RETURN_IF_ERROR(manifest.Add(message.manifest_piece()));
  TC_RETURN_IF_ERROR(difference.Add(message.difference_piece()));
  if (first.has_value()) return absl::OkStatus();
  message.clear_manifest_piece();
  message.clear_difference_piece();
  first = std::move(message);
  return absl::OkStatus();
}

absl::StatusOr<v1::PublishArtifactResponse> Handlers::PublishArtifact(const RequestContext& context,
                                                                      const Publication& publication) {
  if (!publication.first.has_value()) {
    return absl::InvalidArgumentError(
        "publish an artifact: the stream has no message; name the node in the first message");
  }
  const v1::PublishArtifactRequest& first = *publication.first;
  const std::string& bytes = publication.manifest.bytes();
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest,
                      DecodePublished("an artifact", first.node(), bytes));
  const std::string& difference_bytes = publication.difference.bytes();
  std::shared_ptr<const Manifest> difference;  // null: none
  if (!difference_bytes.empty()) {
    TC_ASSIGN_OR_RETURN(difference, DecodePublished("a difference", first.node(), difference_bytes));
  }
  TC_ASSIGN_OR_RETURN(const PublishRequest request, RequestOf(first, *manifest, difference.get()));
  // What makes a repetition the same call: the ids stand for the manifests, however they were cut into
  // pieces.
  const std::string content = absl::StrCat(
      manifest->id(), "\n", difference == nullptr ? "" : difference->id(), "\n", first.SerializeAsString());
  using Publish = Plan<v1::PublishArtifactResponse>;
  return Mutate<v1::PublishArtifactResponse>(
      context, "PublishArtifact", content,
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Publish> {
        TC_ASSIGN_OR_RETURN(PublishPlan plan, directory.PreparePublish(request, now));
        Publish publish{.change = {.facts = std::move(plan.facts), .artifacts = std::move(plan.artifacts)}};
        publish.response.set_artifact_id(manifest->id());
        publish.response.set_existed(plan.existed);
        publish.response.set_key_revision(plan.key_revision);
        publish.response.set_files_id(plan.files_id);
        // The manifest is written once, with the artifact: a publication of the same artifact finds it there.
        if (!plan.existed) {
          publish.change.manifests.push_back({.artifact_id = manifest->id(), .bytes = bytes});
        }
        if (difference != nullptr && !plan.difference_existed) {
          publish.change.manifests.push_back({.artifact_id = difference->id(), .bytes = difference_bytes});
        }
        // Soft state that comes with it, once it is committed: the replica can then be given to others at
        // once, before its node's next report.
        publish.change.also_apply = [&request](Directory& applied) {
          for (const auto& replica : {request.replica, request.difference_replica}) {
            if (replica.has_value()) applied.AddPublishedReplica(request.node, *replica);
          }
          if (request.origin.has_value()) {
            applied.catalog().RenewOrigin(request.artifact.artifact_id, request.node.node_id);
          }
        };
        return publish;
      });
}

absl::Status Handlers::DescribeArtifact(const v1::DescribeArtifactRequest& request,
                                        rpc::StreamWriter<v1::DescribeArtifactResponse>& writer) {
  v1::DescribeArtifactResponse first;
  std::string artifact_id = request.artifact_id();
  std::string more_replicas_after;
  const PageBounds bounds{.bytes = kPageBytes};
  const std::set<std::string, std::less<>> held(request.held_artifacts().begin(),
                                                request.held_artifacts().end());
  const auto view_after = [&](std::string_view after) {
    return coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
      return global_store::DescribeArtifact(directory, artifact_id, after, bounds);
    });
  };
  // By key the answer is what the key names. Replicas are listed where the artifact is asked for by its id.
  if (request.has_key()) {
    TC_ASSIGN_OR_RETURN(*first.mutable_key(), FindKey(request.key()));
    artifact_id = first.key().artifact_id();
  } else if (held.empty()) {
    TC_ASSIGN_OR_RETURN(const ArtifactView view, view_after(""));
    *first.mutable_artifact() = ToProto(view);
    more_replicas_after = view.more_replicas_after;
  } else {
    // Every follower of a key asks for differences with every version: an answer with the replicas of all of
    // them would make that quadratic.
    TC_ASSIGN_OR_RETURN(const ArtifactView view,
                        coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
                          return SummarizeArtifact(directory, artifact_id);
                        }));
    *first.mutable_artifact() = ToProto(view);
  }
  if (!held.empty()) {
    const std::vector<DifferenceEdge> path = coordinator_.WithDirectory(
        [&](Directory& directory, SteadyTime) { return directory.DifferencesTo(artifact_id, held); });
    for (const DifferenceEdge& edge : path) *first.add_differences() = ToProto(edge);
    // The manifests go with the first message as far as they fit. A receiver asks for the others by their
    // ids.
    size_t room = rpc::kPieceBytes;
    for (const DifferenceEdge& edge : path) {
      absl::StatusOr<std::string> bytes = coordinator_.ReadManifest(edge.artifact_id);
      // A manifest that cannot be read ends the list, too: the receiver's own request for it then tells why.
      if (!bytes.ok() || bytes->size() > room) break;
      room -= bytes->size();
      first.add_difference_manifests(*std::move(bytes));
    }
  }
  std::shared_ptr<const std::string> manifest;
  if (request.manifest()) {
    // Read before the first message: once one is sent, an error could only cut the stream off.
    absl::StatusOr<std::string> bytes = coordinator_.ReadManifest(artifact_id);
    // What the key names is known all the same. The caller asks for the manifest by the id, and is told why.
    if (!bytes.ok() && !request.has_key()) return bytes.status();
    if (bytes.ok()) manifest = std::make_shared<const std::string>(*std::move(bytes));
  }
  TC_RETURN_IF_ERROR(writer.Write(std::move(first)));
  // Many replicas take several messages. Each comes from a visit of its own, so that none holds the directory
  // for long.
  for (std::string after = std::move(more_replicas_after); !after.empty();) {
    absl::StatusOr<ArtifactView> more = view_after(after);
    if (absl::IsNotFound(more.status())) break;  // it was deleted meanwhile, and its replicas with it
    TC_RETURN_IF_ERROR(more.status());
    v1::DescribeArtifactResponse message;
    message.mutable_artifact()->set_artifact_id(artifact_id);
    for (const ReplicaInfo& replica : more->replicas) {
      *message.mutable_artifact()->add_replicas() = rpc::ToProto(replica);
    }
    TC_RETURN_IF_ERROR(writer.Write(std::move(message)));
    after = std::move(more->more_replicas_after);
  }
  if (manifest != nullptr) {
    writer.WriteRest(rpc::ManifestPieces<v1::DescribeArtifactResponse>(manifest, *manifest));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ListArtifactsResponse> Handlers::ListArtifacts(const RequestContext&,
                                                                  const v1::ListArtifactsRequest& request) {
  TC_ASSIGN_OR_RETURN(const size_t page, PageSize(request.page_size()));
  // Without an age all are meant, also what was published before the clock was set back.
  const absl::Duration min_age = rpc::FromProto(request.min_age());
  const absl::Time newest =
      min_age > absl::ZeroDuration() ? coordinator_.wall_now() - min_age : absl::InfiniteFuture();
  const ArtifactPage listed = coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    return global_store::ListArtifacts(directory, request.page_token(),
                                       {.entries = page, .bytes = kPageBytes},
                                       {.unkeyed_only = request.unkeyed_only(),
                                        .created_before = newest,
                                        .origin_path = request.origin_path(),
                                        .replicas = request.replicas()});
  });
  v1::ListArtifactsResponse response;
  for (const ArtifactView& view : listed.artifacts) *response.add_artifacts() = ToProto(view);
  response.set_next_page_token(listed.next);
  return response;
}

absl::StatusOr<v1::DeleteArtifactResponse> Handlers::DeleteArtifact(
    const RequestContext& context, const v1::DeleteArtifactRequest& request) {
  // An artifact from which many others were made has more differences than one change takes.
  for (bool more = true; more;) {
    const auto prepare = [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
      Change change;
      TC_ASSIGN_OR_RETURN(change.facts,
                          directory.catalog().PrepareDeleteManyDifferences(request.artifact_id(), now));
      more = !change.facts.empty();
      return change;
    };
    // Errors are told below, where a repeated call finds its answer instead.
    if (!coordinator_.Mutate("", prepare).ok()) break;
  }
  return Mutate<v1::DeleteArtifactResponse>(
      context, "DeleteArtifact", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Plan<v1::DeleteArtifactResponse>> {
        TC_ASSIGN_OR_RETURN(DurableFacts facts,
                            directory.catalog().PrepareDeleteArtifact(request.artifact_id(), now));
        return Plan<v1::DeleteArtifactResponse>{.change = {.facts = std::move(facts)}};
      });
}

}  // namespace tensorcast::global_store
