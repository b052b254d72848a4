#include "tests/stand_ins/cuda/copy_engines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tensorcast::stand_ins {
namespace {

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

absl::StatusOr<std::vector<TimelineEntry>> ReadTimeline(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "opening the GPUs' timeline", path);
  std::vector<TimelineEntry> entries;
  TimelineEntry entry;
  while (read(fd.get(), &entry, sizeof(entry)) == static_cast<ssize_t>(sizeof(entry))) {
    entries.push_back(entry);
  }
  return entries;
}

CopyEngines::CopyEngines(int gpus, std::shared_ptr<DeviceFaults> faults, const std::string& timeline)
    : faults_(std::move(faults)), engines_(gpus) {
  if (timeline.empty()) return;
  timeline_ = UniqueFd(open(timeline.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

// The lock is the engine: it is held for as long as the copy takes, so copies of other streams wait for their
// turn. The delay of a fault comes before the turn, so that it does not occupy the engine.
CopyEngines::Outcome CopyEngines::Run(const Copy& copy) {
  const auto direction = static_cast<size_t>(copy.direction);
  if (faults_ != nullptr) faults_->AwaitDelay();
  absl::MutexLock turn(&engines_[copy.gpu][direction].busy);
  if (faults_ != nullptr && faults_->TakePoison()) return Outcome::kPoisoned;
  if (faults_ != nullptr && faults_->TakeCopyFault()) return Outcome::kFailed;
  const int64_t begin = MonotonicNanos();
  std::memmove(copy.destination, copy.source, copy.bytes);
  const uint64_t rate = faults_ == nullptr ? 0 : faults_->bytes_per_second[direction].load();
  if (rate > 0) {
    const double seconds = static_cast<double>(copy.bytes) / static_cast<double>(rate);
    absl::SleepFor(absl::Seconds(seconds) - absl::Nanoseconds(MonotonicNanos() - begin));
  }
  if (timeline_) {
    const TimelineEntry entry{.pid = getpid(),
                              .gpu = copy.gpu,
                              .stream = copy.stream,
                              .direction = copy.direction,
                              .bytes = copy.bytes,
                              .begin_ns = begin,
                              .end_ns = MonotonicNanos()};
    // One write that appends is never mixed with another's.
    (void)!write(timeline_.get(), &entry, sizeof(entry));
  }
  return Outcome::kDone;
}

}  // namespace tensorcast::stand_ins
