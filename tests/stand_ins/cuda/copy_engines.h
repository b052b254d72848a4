// The copies of GPUs in the stand-in: one engine per GPU and direction, as in hardware, each with a speed
// that tests set; and the timeline of the copies.
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

// The environment variable with the path of the file to which every process appends its GPUs' copies; without
// it none is written.
inline constexpr char kTimelineVariable[] = "TENSORCAST_STAND_IN_TIMELINE";

// A copy that ran. Times are of CLOCK_MONOTONIC, so times of several processes can be compared.
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
  int gpu = 0;  // the GPU of the engine
  uint64_t stream = 0;
  CopyDirection direction = CopyDirection::kToDevice;
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
};

class CopyEngines {
 public:
  // `faults` may be null: none. Empty `timeline`: it is not written.
  CopyEngines(int gpus, std::shared_ptr<DeviceFaults> faults, const std::string& timeline);

  enum class Outcome { kDone, kFailed, kPoisoned };
  // Runs on the caller's thread, which waits for its turn and then for as long as the copy takes at the
  // engine's speed.
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
