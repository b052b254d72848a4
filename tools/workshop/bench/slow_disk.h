// A file system in a file, on a loop device of its own, that one process reads no faster than is said. Takes
// root, loop devices, mkfs.ext4 and the blkio controller of cgroup v1.
//
// It is mounted for the processes that the calling thread starts from then on: the thread gets a mount
// namespace of its own. So nothing is left behind however the process ends, but for an empty cgroup.
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
  // With room for so many bytes, below `directory`. FAILED_PRECONDITION where it cannot be made.
  static absl::StatusOr<std::unique_ptr<SlowDisk>> Make(const std::string& directory, uint64_t bytes);
  ~SlowDisk();
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;

  const std::string& path() const { return path_; }  // of the folder
  // The process, with the threads that it has, reads so many bytes a second from now on. FAILED_PRECONDITION
  // as Make.
  absl::Status Throttle(pid_t process, uint64_t bytes_per_second);

 private:
  SlowDisk() = default;
  absl::Status MakeAndMount(const std::string& directory, uint64_t bytes);

  std::string path_;
  std::string device_number_;  // "7:3"
  std::string group_;          // the folder of the cgroup; empty: none was made
};

}  // namespace tensorcast::bench
