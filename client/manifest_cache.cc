#include "client/manifest_cache.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "rpc/call.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

// Manifests outgrow a message, so both send them in pieces. No lock is held meanwhile: two callers may fetch
// the same one, and it is then kept twice until it is forgotten.
absl::Status FetchFromDaemon(DaemonLink& link, const RequestContext& context, const std::string& artifact_id,
                             rpc::PieceJoiner& bytes) {
  v1::GetManifestRequest request;
  request.set_artifact_id(artifact_id);
  return rpc::CallServerStream(
      link.daemon(), &v1::StoreDaemon::Stub::GetManifest, context, request,
      [&](v1::GetManifestResponse&& response) { return bytes.Add(response.manifest_piece()); },
      {.what = "fetching a manifest"});
}

absl::Status FetchFromGlobalStore(DaemonLink& link, const RequestContext& context,
                                  const std::string& artifact_id, rpc::PieceJoiner& bytes) {
  v1::DescribeArtifactRequest request;
  request.set_artifact_id(artifact_id);
  request.set_manifest(true);
  return rpc::CallServerStream(
      link.global_store(), &v1::GlobalStore::Stub::DescribeArtifact, context, request,
      [&](v1::DescribeArtifactResponse&& response) { return bytes.Add(response.manifest_piece()); },
      {.what = "fetching a manifest"});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> ManifestCache::Get(const RequestContext& context,
                                                                   const std::string& artifact_id) {
  if (auto kept = Find(artifact_id)) return kept;
  rpc::PieceJoiner bytes;
  absl::Status fetched = FetchFromDaemon(link_, context, artifact_id, bytes);
  if (absl::IsNotFound(fetched)) {  // its replica is gone again
    bytes = rpc::PieceJoiner();
    fetched = FetchFromGlobalStore(link_, context, artifact_id, bytes);
  }
  TC_RETURN_IF_ERROR(Annotate(fetched, absl::StrCat("fetching the manifest of ", artifact_id)));
  auto manifest = Manifest::Decode(bytes.bytes());
  // The id is the hash of what the manifest says, so this proves it, from any sender.
  if (!manifest.ok() || (*manifest)->id() != artifact_id) {
    return absl::DataLossError(
        absl::StrCat("the manifest that came for ", artifact_id,
                     " is not its own: ", manifest.ok() ? (*manifest)->id() : manifest.status().ToString()));
  }
  return Keep(*std::move(manifest));
}

std::shared_ptr<const Manifest> ManifestCache::Find(const std::string& artifact_id) {
  absl::MutexLock lock(&mutex_);
  auto it =
      std::find_if(kept_.begin(), kept_.end(), [&](const auto& kept) { return kept->id() == artifact_id; });
  if (it == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, it);
  return kept_.front();
}

std::shared_ptr<const Manifest> ManifestCache::Keep(std::shared_ptr<const Manifest> manifest) {
  absl::MutexLock lock(&mutex_);
  for (const auto& kept : kept_) {
    if (kept->id() == manifest->id()) return kept;
  }
  kept_.push_front(std::move(manifest));
  if (kept_.size() > kKept) kept_.pop_back();
  return kept_.front();
}

}  // namespace tensorcast::client
