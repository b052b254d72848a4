// All that reaching another daemon takes, in one place: what the sources of a transfer are opened with. A
// bundle of borrowed pointers; everything must outlive the transfers that use it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/disk/import_roots.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/sources/errands.h"
#include "daemon/sources/peer_client.h"
#include "daemon/sources/peer_pools.h"
#include "daemon/sources/running_grants.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

inline constexpr std::string_view kLocalLane = "local";  // attach to a daemon of the same host
inline constexpr std::string_view kDiskLane = "disk";    // this node's own packed files and origins
inline constexpr std::string_view kRmaLane = "ucx-rma";  // the source's pool, read remotely

// True when a grant of the lane `granted` also permits a pull over `wanted`: attaching and remote reads open
// the whole pool to the receiver, so messages about one replica give it nothing more.
inline bool LaneCovers(std::string_view granted, std::string_view wanted) {
  return granted == wanted ||
         ((granted == kLocalLane || granted == kRmaLane) && wanted != kLocalLane && wanted != kRmaLane);
}

struct PeerAccess {
  GlobalStoreClient* global_store = nullptr;
  GlobalStoreLink* link = nullptr;
  PeerClient* peers = nullptr;
  PeerPools* pools = nullptr;
  RunningGrants* running = nullptr;
  Errands* errands = nullptr;
  StoreEngine* engine = nullptr;
  DeviceRuntime* devices = nullptr;
  const ImportRoots* import_roots = nullptr;
  std::vector<transport::Transport*> lanes;  // fastest first
  absl::Duration peer_timeout = absl::Seconds(10);

  // nullptr when this node has no such lane.
  transport::Transport* FindLane(std::string_view name) const {
    for (transport::Transport* lane : lanes) {
      if (lane->name() == name) {
        return lane;
      }
    }
    return nullptr;
  }
};

}  // namespace tensorcast::daemon
