#include "client/named.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/manifest.h"
#include "rpc/call.h"

namespace tensorcast::client {

absl::Status CheckNamed(std::string_view artifact) {
  if (!artifact.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("find an artifact: the name is empty; give a key or an artifact id");
}

absl::StatusOr<v1::Key> BindingOf(const DaemonLink& link, const RequestContext& operation,
                                  std::string_view artifact) {
  TC_RETURN_IF_ERROR(CheckNamed(artifact));
  if (IsArtifactId(artifact)) {
    v1::Key binding;
    binding.set_artifact_id(std::string(artifact));
    return binding;
  }
  v1::ResolveKeyRequest request;
  request.set_key(std::string(artifact));
  // What is done to the artifact has no place for the mark of an unconfirmed answer.
  request.set_confirmed(true);
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse response,
                      rpc::CallUnary(link.global_store(), &v1::GlobalStore::Stub::ResolveKey, operation,
                                     request, {.what = "resolve a key"}));
  return response.key();
}

absl::StatusOr<std::string> ArtifactIdOf(const DaemonLink& link, const RequestContext& operation,
                                         std::string_view artifact) {
  TC_ASSIGN_OR_RETURN(const v1::Key binding, BindingOf(link, operation, artifact));
  return binding.artifact_id();
}

absl::Status ForReplicasNamed(const DaemonLink& link, const RequestContext& operation, std::string_view name,
                              absl::FunctionRef<absl::Status(const std::string& replica_id)> call) {
  // A key may look like a replica id. So the daemon is asked for a replica of that id first, and only what it
  // does not know is resolved as an artifact.
  const absl::Status by_id = call(std::string(name));
  if (!absl::IsNotFound(by_id)) return by_id;
  const absl::StatusOr<std::string> artifact_id = ArtifactIdOf(link, operation, name);
  if (absl::IsNotFound(artifact_id.status())) {
    return absl::NotFoundError(absl::StrCat("find replica ", name,
                                            ": this node has no replica with this id, and no key is called ",
                                            name, "; see `tensorcast replica ls` and `tensorcast key ls`"));
  }
  TC_RETURN_IF_ERROR(artifact_id.status());
  v1::ListReplicasRequest request;
  request.set_artifact_id(*artifact_id);
  TC_ASSIGN_OR_RETURN(const v1::ListReplicasResponse listed,
                      rpc::CallUnary(link.daemon(), &v1::StoreDaemon::Stub::ListReplicas, operation, request,
                                     {.what = "list the replicas"}));
  if (listed.replicas().empty()) {
    return absl::NotFoundError(absl::StrCat(
        "find replicas of ", name,
        ": this node has no replica of this artifact; `tensorcast replica ls` lists the replicas of this "
        "node"));
  }
  // The first error ends it. What was done before stays done, and the call can be repeated.
  for (const v1::Replica& replica : listed.replicas()) TC_RETURN_IF_ERROR(call(replica.replica_id()));
  return absl::OkStatus();
}

}  // namespace tensorcast::client
