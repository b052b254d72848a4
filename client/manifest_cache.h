// The manifests of the artifacts that were used last, by artifact id. Private to this folder. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/daemon_link.h"
#include "core/artifact/manifest.h"

namespace tensorcast::client {

class ManifestCache {
 public:
  explicit ManifestCache(DaemonLink* link) : link_(*link) {}  // must outlive this

  // From the daemon, or through it from the global store. DATA_LOSS when what came is not the manifest of
  // that id.
  absl::StatusOr<std::shared_ptr<const Manifest>> Get(const RequestContext& context,
                                                      const std::string& artifact_id)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::shared_ptr<const Manifest> Find(const std::string& artifact_id) ABSL_LOCKS_EXCLUDED(mutex_);
  // The one that is kept: another call may have fetched the same meanwhile.
  std::shared_ptr<const Manifest> Keep(std::shared_ptr<const Manifest> manifest) ABSL_LOCKS_EXCLUDED(mutex_);

  static constexpr size_t kKept = 16;

  DaemonLink& link_;
  absl::Mutex mutex_;
  std::list<std::shared_ptr<const Manifest>> kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace tensorcast::client
