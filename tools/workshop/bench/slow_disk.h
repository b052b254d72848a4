// A file system in a file, on a separate loop device, with a limit on the rate at which one process reads it.
// Needs root, loop devices, mkfs.ext4 and the blkio controller of cgroup v1.
//
// It is mounted only for processes that the calling thread starts from then on, since the thread gets a mount
// namespace of its own. Thus only an empty cgroup is left behind, however the process ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast::bench {

// Thread-compatible; call from the main thread (process.h).
class SlowDisk {
 public:
  // Makes one with space for `bytes`, below `directory`. FAILED_PRECONDITION if that is not possible.
  static absl::StatusOr<std::unique_ptr<SlowDisk>> Make(const std::string& directory, uint64_t bytes);
  ~SlowDisk();
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;

  const std::string& path() const { return path_; }  // of the folder
  // From now on the process, with its present threads, reads at most at this rate. FAILED_PRECONDITION as
  // Make.
  absl::Status Throttle(pid_t process, uint64_t bytes_per_second);

 private:
  SlowDisk() = default;
  absl::Status MakeAndMount(const std::string& directory, uint64_t bytes);

  std::string path_;
  std::string device_number_;  // "7:3"
  std::string group_;          // folder of the cgroup; empty: none was made
};

}  // namespace tensorcast::bench
