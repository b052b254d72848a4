// The manifests of the artifacts that were used last. Private to this folder. Thread-safe.
#pragma once

#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/artifact/manifest.h"

namespace tensorcast::client {

using Manifests = std::list<std::shared_ptr<const Manifest>>;

class ManifestCache {
 public:
  Manifests All() const;
  // It is the last used from now on.
  void Keep(const std::shared_ptr<const Manifest>& manifest);

 private:
  static constexpr size_t kKept = 16;

  mutable absl::Mutex mutex_;
  Manifests kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace tensorcast::client
