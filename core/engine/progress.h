// How long the stages of one source took. Thread-safe.
#pragma once

#include <array>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

class StageClock {
 public:
  explicit StageClock(const SourceInfo& source);

  // One chunk went through the stage from `start` to now. `bytes` 0 where the stage had nothing to read or
  // write: it is counted, and takes no time.
  void Passed(Stage stage, absl::Time start, uint64_t bytes);
  // The stage failed for a chunk; the first failure's status is kept.
  void Failed(Stage stage, absl::Time start, const absl::Status& why);

  // The stages that anything went through.
  std::vector<StageReport> Reports() const;

 private:
  StageReport& Extend(Stage stage, absl::Time start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::array<StageReport, 3> stages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
