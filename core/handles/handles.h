// What travels over the handle socket (FORMAT.md): descriptions of a replica's memory and the descriptors
// behind them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// Owns a file descriptor. Movable.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

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
