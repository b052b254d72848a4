#include "client/manifest_cache.h"

namespace tensorcast::client {

Manifests ManifestCache::All() const {
  absl::MutexLock lock(&mutex_);
  return kept_;
}

void ManifestCache::Keep(const std::shared_ptr<const Manifest>& manifest) {
  absl::MutexLock lock(&mutex_);
  kept_.remove_if([&manifest](const auto& kept) { return kept->id() == manifest->id(); });
  kept_.push_front(manifest);
  if (kept_.size() > kKept) kept_.pop_back();
}

}  // namespace tensorcast::client
