// How copies of GPUs run in the stand-in: one engine a GPU and direction, as hardware has them, each with a
// speed that a test may set; and the timeline of what ran when.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"
#include "core/device/testing/device_faults.h"

namespace tensorcast::stand_ins {

// The environment variable that names the file to which every process adds what its GPUs did; without it
// nothing is written.
inline constexpr char kTimelineVariable[] = "TENSORCAST_STAND_IN_TIMELINE";

// A copy that ran. Times are of CLOCK_MONOTONIC, so those of several processes can be compared.
struct TimelineEntry {
  int32_t pid = 0;
  int32_t gpu = 0;
  uint64_t stream = 0;
  CopyDirection direction = CopyDirection::kToDevice;
  uint64_t bytes = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

absl::StatusOr<std::vector<TimelineEntry>> ReadTimeline(const std::string& path);

struct Copy {
  int gpu = 0;  // the GPU with the engine that does it
  uint64_t stream = 0;
  CopyDirection direction = CopyDirection::kToDevice;
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
};

class CopyEngines {
 public:
  // `faults` may be null: none. Empty `timeline`: none is written.
  CopyEngines(int gpus, std::shared_ptr<DeviceFaults> faults, const std::string& timeline);

  enum class Outcome { kDone, kFailed, kPoisoned };
  // On the caller's thread, which waits for its turn, and as long as the copy takes at the engine's speed.
  Outcome Run(const Copy& copy);

 private:
  struct Engine {
    absl::Mutex busy;
  };

  const std::shared_ptr<DeviceFaults> faults_;
  UniqueFd timeline_;
  std::vector<std::array<Engine, kCopyDirections>> engines_;  // by GPU
};

}  // namespace tensorcast::stand_ins
