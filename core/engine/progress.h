// What an ingest tells of itself while it runs: how far it is, and how long its stages take with each source.
//
// Thread-safe: the pipeline's slots write, whoever asks for progress or a report reads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// The stages of one source.
class StageClock {
 public:
  explicit StageClock(const SourceInfo& source);

  // One chunk went through the stage from `start` to now. `bytes` 0 where the stage had nothing to read or
  // write: it is counted, and takes no time.
  void Passed(Stage stage, SteadyTime start, uint64_t bytes);
  // The stage failed for a chunk; the first failure's status is kept.
  void Failed(Stage stage, SteadyTime start, const absl::Status& why);

  // The stages that anything went through.
  std::vector<StageReport> Reports() const;

 private:
  StageReport& Extend(Stage stage, SteadyTime start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::array<StageReport, 3> stages_ ABSL_GUARDED_BY(mutex_);
};

// A whole ingest. Outlives the pipeline that writes it.
class ProgressTracker {
 public:
  explicit ProgressTracker(uint64_t bytes_total);
  // The source in use from here on, and the clock that its stages run by.
  void SetSource(SourceInfo source, std::shared_ptr<const StageClock> clock);
  void AddDone(uint64_t bytes);
  // Empty: it does not wait for a source.
  void SetWaitingFor(const std::string& what);
  TransferProgress Get() const;
  // Of every source so far.
  std::vector<StageReport> Stages() const;

 private:
  mutable absl::Mutex mutex_;
  TransferProgress progress_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const StageClock>> clocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
