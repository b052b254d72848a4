#include "client/base_order.h"

#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "client/named.h"
#include "core/artifact/manifest.h"
#include "rpc/call.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

// "auto" stands for what the key of the put names now. The session keeps the manifest, so later puts with the
// same base do not fetch it.
absl::StatusOr<std::shared_ptr<const Manifest>> BaseOf(Session& session, const RequestContext& operation,
                                                       const PutOptions& options) {
  const std::string& named = options.base == "auto" ? options.key.value_or("") : options.base;
  TC_ASSIGN_OR_RETURN(const std::string artifact_id, ArtifactIdOf(*session.link, operation, named));
  for (const std::shared_ptr<const Manifest>& manifest : session.manifests.All()) {
    if (manifest->id() == artifact_id) return manifest;
  }
  v1::DescribeArtifactRequest request;
  request.set_artifact_id(artifact_id);
  request.set_manifest(true);
  rpc::PieceJoiner pieces;
  TC_RETURN_IF_ERROR(rpc::CallServerStream(
      session.link->global_store(), &v1::GlobalStore::Stub::DescribeArtifact, operation, request,
      [&](v1::DescribeArtifactResponse&& response) { return pieces.Add(response.manifest_piece()); },
      {.what = "get the manifest of the base"}));
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(pieces.bytes());
  if (!manifest.ok()) {
    return absl::DataLossError(
        absl::StrCat("get the manifest of base ", artifact_id,
                     ": the global store sent a malformed manifest (", manifest.status().message(),
                     "); no action is needed, the put continues without the order of the base"));
  }
  if ((*manifest)->id() != artifact_id) {
    return absl::DataLossError(absl::StrCat(
        "get the manifest of base ", artifact_id, ": the global store sent the manifest of ",
        (*manifest)->id(), "; no action is needed, the put continues without the order of the base"));
  }
  session.manifests.Keep(*manifest);
  return manifest;
}

// Empty: the tensors are not those of the base.
std::vector<PutTensor> Reordered(std::span<const PutTensor> tensors, const ImageLayout& base) {
  if (tensors.size() != base.tensors.size()) return {};
  absl::flat_hash_map<std::string_view, const PutTensor*> by_name;
  for (const PutTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<PutTensor> ordered;
  ordered.reserve(tensors.size());
  for (const Tensor& wanted : base.tensors) {
    const auto found = by_name.find(wanted.name);
    if (found == by_name.end() || found->second->dtype != wanted.dtype ||
        found->second->shape != wanted.shape) {
      return {};
    }
    ordered.push_back(*found->second);
  }
  return ordered;
}

}  // namespace

std::vector<PutTensor> InOrderOfBase(Session& session, const RequestContext& operation,
                                     std::span<const PutTensor> tensors, const PutOptions& options) {
  std::vector<PutTensor> as_given(tensors.begin(), tensors.end());
  if (options.base.empty() || options.base == "none" || tensors.size() < 2) return as_given;
  const absl::StatusOr<std::shared_ptr<const Manifest>> base = BaseOf(session, operation, options);
  if (!base.ok()) {
    VLOG(1) << "put: the tensors keep the order in which the caller gave them: " << base.status();
    return as_given;
  }
  // A put never fails here: without the base's order its difference is larger, or there is none.
  std::vector<PutTensor> ordered = Reordered(tensors, (*base)->layout());
  return ordered.empty() ? as_given : ordered;
}

}  // namespace tensorcast::client
