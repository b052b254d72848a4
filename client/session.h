// The state that all calls of one Client share. Private to this folder. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/admin.h"
#include "client/daemon_link.h"
#include "client/lease_keeper.h"
#include "core/artifact/manifest.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// The operation that error messages name when one attempt of a get or put fails.
inline constexpr char kAsking[] = "ask the daemon";

using Manifests = std::list<std::shared_ptr<const Manifest>>;

// The manifests of the 16 artifacts that were used last. Thread-safe.
class ManifestCache {
 public:
  Manifests All() const {
    absl::MutexLock lock(&mutex_);
    return kept_;
  }
  // Adds the manifest as the last used one. Drops the oldest manifest if the cache is full.
  void Keep(const std::shared_ptr<const Manifest>& manifest) {
    absl::MutexLock lock(&mutex_);
    kept_.remove_if([&manifest](const auto& kept) { return kept->id() == manifest->id(); });
    kept_.push_front(manifest);
    if (kept_.size() > kKept) kept_.pop_back();
  }

 private:
  static constexpr size_t kKept = 16;

  mutable absl::Mutex mutex_;
  Manifests kept_ ABSL_GUARDED_BY(mutex_);  // the last used first
};

// The Client and each of its background gets hold a reference.
struct Session {
  Session(std::unique_ptr<DaemonLink> link_to_daemon, const ClientOptions& options)
      : telemetry(options.telemetry),
        link(std::move(link_to_daemon)),
        calls(link),
        leases(link.get()),
        devices(options.devices) {}

  const std::shared_ptr<void> telemetry;  // declared first, so that it is destroyed after all other members
  const std::shared_ptr<DaemonLink> link;
  AdminClient calls;  // over the link
  ManifestCache manifests;
  LeaseKeeper leases;
  DeviceRuntime* const devices;  // may be null
};

}  // namespace tensorcast::client
