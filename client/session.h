// What the calls of one client share. Private to this folder. Thread-safe.
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

// What a get or a put does in its tries, in messages that have it in front already.
inline constexpr char kAsking[] = "ask the daemon";

using Manifests = std::list<std::shared_ptr<const Manifest>>;

// The manifests of the artifacts that were used last. Thread-safe.
class ManifestCache {
 public:
  Manifests All() const {
    absl::MutexLock lock(&mutex_);
    return kept_;
  }
  // It is the last used from now on.
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

// Held by the client and by each get of it that runs in the background.
struct Session {
  Session(std::unique_ptr<DaemonLink> link_to_daemon, const ClientOptions& options)
      : telemetry(options.telemetry),
        link(std::move(link_to_daemon)),
        calls(link),
        leases(link.get()),
        devices(options.devices) {}

  const std::shared_ptr<void> telemetry;  // ends after all else
  const std::shared_ptr<DaemonLink> link;
  AdminClient calls;  // over the link
  ManifestCache manifests;
  LeaseKeeper leases;
  DeviceRuntime* const devices;  // may be null
};

}  // namespace tensorcast::client
