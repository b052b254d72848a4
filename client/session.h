// What the calls of one client share. Private to this folder. Thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "client/admin.h"
#include "client/daemon_link.h"
#include "client/lease_keeper.h"
#include "client/manifest_cache.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// What a get or a put does in its tries, in messages that have it in front already.
inline constexpr char kAsking[] = "asking the daemon";

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
