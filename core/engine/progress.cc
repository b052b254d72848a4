#include "core/engine/progress.h"

#include <algorithm>
#include <utility>

#include "base/steady_time.h"

namespace tensorcast {

StageClock::StageClock(const SourceInfo& source) {
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i].stage = static_cast<Stage>(i);
    stages_[i].source = source;
    // Nothing went through yet. So set, that min and max of the first chunk need no case of their own.
    stages_[i].start = SteadyTime::InfiniteFuture();
    stages_[i].end = SteadyTime::InfinitePast();
  }
}

// Slots run the stage side by side: the span from `start` to `end` is what the stage took of the clock,
// `busy` the sum over all slots, which may be more.
StageReport& StageClock::Extend(Stage stage, SteadyTime start) {
  StageReport& report = stages_[static_cast<size_t>(stage)];
  const SteadyTime end = std::max(start, SteadyNow());
  report.start = std::min(report.start, start);
  report.end = std::max(report.end, end);
  report.busy += end - start;
  return report;
}

void StageClock::Passed(Stage stage, SteadyTime start, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  StageReport& report = stages_[static_cast<size_t>(stage)];
  if (bytes > 0) {
    Extend(stage, start).bytes += bytes;
  } else if (report.start == SteadyTime::InfiniteFuture()) {
    // Told in the report all the same, with a span of no length.
    report.start = report.end = SteadyNow();
  }
  ++report.chunks;
}

void StageClock::Failed(Stage stage, SteadyTime start, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  StageReport& report = Extend(stage, start);
  report.status.Update(why);
}

std::vector<StageReport> StageClock::Reports() const {
  absl::MutexLock lock(&mutex_);
  std::vector<StageReport> reports;
  for (const StageReport& report : stages_) {
    if (report.start != SteadyTime::InfiniteFuture()) reports.push_back(report);
  }
  return reports;
}

ProgressTracker::ProgressTracker(uint64_t bytes_total) {
  absl::MutexLock lock(&mutex_);
  progress_.bytes_total = bytes_total;
}

void ProgressTracker::SetSource(SourceInfo source, std::shared_ptr<const StageClock> clock) {
  absl::MutexLock lock(&mutex_);
  progress_.source = std::move(source);
  clocks_.push_back(std::move(clock));
}

void ProgressTracker::AddDone(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  progress_.bytes_done += bytes;
}

void ProgressTracker::SetWaitingFor(const std::string& what) {
  absl::MutexLock lock(&mutex_);
  progress_.waiting_for = what;
}

TransferProgress ProgressTracker::Get() const {
  absl::MutexLock lock(&mutex_);
  return progress_;
}

std::vector<StageReport> ProgressTracker::Stages() const {
  std::vector<StageReport> stages;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<const StageClock>& clock : clocks_) {
    // Under the tracker's mutex then each clock's; never the other way round.
    const std::vector<StageReport> reports = clock->Reports();
    stages.insert(stages.end(), reports.begin(), reports.end());
  }
  return stages;
}

}  // namespace tensorcast
