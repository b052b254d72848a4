// What travels over the handle socket (FORMAT.md): descriptions of a replica's memory and the descriptors
// behind them; and what a ticket and an offer's token stand for at the daemon's end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/posix/unique_fd.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// A host replica: extents of the daemon's pool, in image order. The descriptor is the sealed pool.
struct HostHandles {
  std::string pool_id;  // UUID, new each time a daemon starts: the same id, the same memory
  uint64_t pool_bytes = 0;
  std::vector<Extent> extents;
};

// A GPU replica.
struct DeviceHandles {
  IpcHandle ipc;
};

// A disk replica: the packed file (the descriptor), open for reading.
struct FileHandles {
  uint64_t image_offset = 0;
};

struct ReplicaHandles {
  std::string replica_id;
  std::string artifact_id;
  uint64_t image_bytes = 0;
  std::variant<HostHandles, DeviceHandles, FileHandles> memory;
};

// Who a ticket is for.
enum class Holder : uint8_t { kClient, kDaemon };

// What a ticket stands for. Destroying `hold` releases the lease; that happens on the server's thread, with
// no lock held, and must not block.
struct Claim {
  ReplicaHandles handles;
  int fd = -1;  // passed to the peer; stays the owner's, open while `hold` lives; -1 for device memory
  std::shared_ptr<void> hold;
  Holder holder = Holder::kClient;
};

// Memory that a client handed over and still owns; valid while its connection lives (a memfd's mapping
// outlives it).
struct Offer {
  UniqueFd memfd;  // sealed WRITE | SHRINK | GROW, checked; not set for device memory
  uint64_t bytes = 0;
  IpcHandle ipc;  // for device memory
};

}  // namespace tensorcast
