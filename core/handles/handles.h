// What travels over the handle socket (FORMAT.md): descriptions of a replica's memory and the descriptors
// behind them.
#pragma once

#include <cstdint>
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

}  // namespace tensorcast
