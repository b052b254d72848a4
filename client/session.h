// Get: materialize at the daemon, claim the ticket, map or open. Private to this folder.
#pragma once

#include <memory>
#include <string_view>

#include "client/daemon_link.h"
#include "client/manifest_cache.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

// What the operations of one client share; a background get keeps it alive.
struct Core {
  Core(std::unique_ptr<DaemonLink> l, DeviceRuntime* d, std::shared_ptr<void> t)
      : telemetry(std::move(t)), link(std::move(l)), manifests(link.get()), devices(d) {}

  const std::shared_ptr<void> telemetry;  // ends after all else
  const std::unique_ptr<DaemonLink> link;
  Manifests manifests;
  DeviceRuntime* const devices;  // may be null
};

absl::StatusOr<std::unique_ptr<Replica>> RunGet(Core& core, const RequestContext& context,
                                                std::string_view artifact, const GetOptions& options);

std::unique_ptr<PendingGet> StartGetThread(std::shared_ptr<Core> core, const RequestContext& context,
                                           std::string_view artifact, const GetOptions& options);

}  // namespace tensorcast::client
