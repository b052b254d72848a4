#include "core/ingest/progress.h"

#include <algorithm>
#include <utility>

#include "base/steady_time.h"

namespace tensorcast {

StageClock::StageClock(const SourceInfo& source, bool filling) {
  absl::MutexLock lock(&mutex_);
  source_ = {.source = source, .filling = filling, .joined = SteadyNow()};
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
// A failed step is measured as well: its time counts in `busy`, its bytes do not.
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

void StageClock::Asked(SteadyTime now) {
  absl::MutexLock lock(&mutex_);
  asked_.Begin(now);
}

void StageClock::Answered(SteadyTime now) {
  absl::MutexLock lock(&mutex_);
  asked_.End(now);
}

void StageClock::Placed(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  source_.bytes += bytes;
  ++source_.chunks;
}

void StageClock::Reassigned() {
  absl::MutexLock lock(&mutex_);
  ++source_.reassigned_chunks;
}

void StageClock::CameDirectly() {
  absl::MutexLock lock(&mutex_);
  source_.direct = true;
}

void StageClock::Leave(std::optional<SourceLoss> loss, const absl::Status& status, uint32_t lost_chunks) {
  absl::MutexLock lock(&mutex_);
  if (source_.left != SteadyTime::InfiniteFuture()) return;
  source_.left = SteadyNow();
  source_.loss = loss;
  source_.status = status;
  source_.lost_chunks = lost_chunks;
}

SourceReport StageClock::Source() const {
  absl::MutexLock lock(&mutex_);
  SourceReport report = source_;
  report.asked = asked_.Until(SteadyNow());
  return report;
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

void ProgressTracker::SetPlan(uint64_t bytes_total, uint64_t bytes_present) {
  absl::MutexLock lock(&mutex_);
  progress_.bytes_total = bytes_total;
  progress_.bytes_present = bytes_present;
}

void ProgressTracker::AddSource(std::shared_ptr<const StageClock> clock) {
  absl::MutexLock lock(&mutex_);
  sources_.push_back(std::move(clock));
}

// An ingest that waits for a source tries the same ones again and again: that is not a list to grow.
void ProgressTracker::AddUnopened(const SourceInfo& source, const absl::Status& why) {
  auto clock = std::make_shared<StageClock>(source);
  clock->Leave(SourceLoss::kNotOpened, why, /*lost_chunks=*/0);
  absl::MutexLock lock(&mutex_);
  if (!sources_.empty()) {
    const SourceReport last = sources_.back()->Source();
    const bool same = last.source.lane == source.lane && last.source.name == source.name;
    if (same && last.loss == SourceLoss::kNotOpened) sources_.pop_back();
  }
  sources_.push_back(std::move(clock));
}

// The chunks under way are counted from Took to Ended. The time between the first Took and the last Ended in
// which none was under way is the idle time of the ingest (Report).
void ProgressTracker::Took() {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = SteadyNow();
  if (first_took_ == SteadyTime::InfinitePast()) first_took_ = now;
  under_way_.Begin(now);
}

void ProgressTracker::Ended() {
  absl::MutexLock lock(&mutex_);
  last_ended_ = SteadyNow();
  under_way_.End(last_ended_);
}

void ProgressTracker::BeginBufferWait() {
  absl::MutexLock lock(&mutex_);
  ++wait_for_buffer_;
  NoteBuffers(SteadyNow());
}

void ProgressTracker::EndBufferWait() {
  absl::MutexLock lock(&mutex_);
  --wait_for_buffer_;
  NoteBuffers(SteadyNow());
}

// The ingest lacks buffers only while chunks wait for a buffer and no source has a request: as long as a
// source is busy, a buffer that came sooner would not make the ingest faster. BusyTime counts nested
// intervals, so only a change of that condition begins or ends one.
void ProgressTracker::NoteBuffers(SteadyTime now) {
  const bool are_short = wait_for_buffer_ > 0 && requested_ == 0;
  if (std::exchange(buffers_short_, are_short) == are_short) return;
  if (are_short) {
    buffers_.Begin(now);
  } else {
    buffers_.End(now);
  }
}

// The times of the ingest and of its source are taken at the same `now`, so the time with a request is never
// longer for a source than for the whole ingest.
void ProgressTracker::Asked(StageClock& clock) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = SteadyNow();
  fetching_.Begin(now);
  ++requested_;
  NoteBuffers(now);
  clock.Asked(now);
}

void ProgressTracker::Answered(StageClock& clock) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = SteadyNow();
  fetching_.End(now);
  --requested_;
  NoteBuffers(now);
  clock.Answered(now);
}

void ProgressTracker::AddDone(StageClock& clock, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  // Both under one lock, so that the bytes of a report are the sum of its sources'.
  progress_.bytes_done += bytes;
  clock.Placed(bytes);
}

void ProgressTracker::SetWaitingFor(const std::string& what) {
  absl::MutexLock lock(&mutex_);
  progress_.waiting_for = what;
}

// Only the sources in use: a source that left is in the report.
TransferProgress ProgressTracker::Get() const {
  absl::MutexLock lock(&mutex_);
  TransferProgress progress = progress_;
  for (const std::shared_ptr<const StageClock>& clock : sources_) {
    SourceReport source = clock->Source();
    if (source.left == SteadyTime::InfiniteFuture()) progress.sources.push_back(std::move(source));
  }
  return progress;
}

void ProgressTracker::Report(TransferReport* report) const {
  absl::MutexLock lock(&mutex_);
  report->bytes = progress_.bytes_done;
  report->bytes_total = progress_.bytes_total;
  report->bytes_present = progress_.bytes_present;
  const SteadyTime now = SteadyNow();
  report->fetching = fetching_.Until(now);
  report->wall_time[TimeUse::kBuffers] = buffers_.Until(now);
  // What is before the first chunk and after the last one is told as start and finish.
  if (first_took_ != SteadyTime::InfinitePast() && last_ended_ > first_took_) {
    report->wall_time[TimeUse::kIdle] =
        std::max(last_ended_ - first_took_ - under_way_.Until(last_ended_), absl::ZeroDuration());
  }
  for (const std::shared_ptr<const StageClock>& clock : sources_) {
    // Under the tracker's mutex then each clock's; never the other way round.
    const std::vector<StageReport> stages = clock->Reports();
    report->stages.insert(report->stages.end(), stages.begin(), stages.end());
    report->sources.push_back(clock->Source());
  }
}

}  // namespace tensorcast
