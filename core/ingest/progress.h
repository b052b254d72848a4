// The progress of a running ingest: the bytes that are done, and the time of each stage with each source.
//
// Thread-safe: the pipeline's slots write, and any thread may read progress and reports.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/busy_time.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// The stages and the outcome of one source.
class StageClock {
 public:
  // The source joins now. `filling`: the source does not have every chunk yet.
  explicit StageClock(const SourceInfo& source, bool filling = false);

  // A chunk was in the stage from `start` to now. `bytes` is 0 if the stage had nothing to read or write:
  // then the chunk is counted, but its time is not.
  void Passed(Stage stage, SteadyTime start, uint64_t bytes);
  // The stage failed for a chunk; the first failure's status is kept.
  void Failed(Stage stage, SteadyTime start, const absl::Status& why);

  // Call Asked when a chunk was requested from the source, and Answered when a requested chunk arrived or its
  // fetch failed.
  void Asked(SteadyTime now);
  void Answered(SteadyTime now);
  void Placed(uint64_t bytes);
  // A chunk was taken back from the source because it was slow.
  void Reassigned();
  // A chunk came into a GPU's memory without passing through host memory.
  void CameDirectly();
  // The source leaves now. `loss` is the reason if it was given up. Only the first call has an effect.
  void Leave(std::optional<SourceLoss> loss, const absl::Status& status, uint32_t lost_chunks);

  // The reports of the stages through which at least one chunk went.
  std::vector<StageReport> Reports() const;
  SourceReport Source() const;

 private:
  StageReport& Extend(Stage stage, SteadyTime start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::array<StageReport, 3> stages_ ABSL_GUARDED_BY(mutex_);
  SourceReport source_ ABSL_GUARDED_BY(mutex_);  // without the time in `asked_`
  BusyTime asked_ ABSL_GUARDED_BY(mutex_);
};

// The progress of a whole ingest. Must outlive the pipeline that writes it.
class ProgressTracker {
 public:
  explicit ProgressTracker(uint64_t bytes_total);
  // Called before the first chunk: the bytes to bring, and the requested bytes that are already present.
  void SetPlan(uint64_t bytes_total, uint64_t bytes_present);
  // Adds a source. The source is in use until its clock notes the end (StageClock::Leave).
  void AddSource(std::shared_ptr<const StageClock> clock);
  // A source could not be opened. Consecutive failures of the same source count as one failure.
  void AddUnopened(const SourceInfo& source, const absl::Status& why);
  // A chunk is in flight from Took (a source was chosen for it) to Ended (it is placed, or has failed).
  void Took();
  void Ended();
  // The start and the end of a wait for memory. A chunk in flight waits for a buffer at most once. The ingest
  // may also wait for space in the host pool before its first chunk.
  void BeginBufferWait();
  void EndBufferWait();
  // As in StageClock, for the source with this clock.
  void Asked(StageClock& clock);
  void Answered(StageClock& clock);
  // A chunk of the source with this clock was placed.
  void AddDone(StageClock& clock, uint64_t bytes);
  // `what` is for people: a source, space or chunks. Empty: the ingest does not wait.
  void SetWaitingFor(const std::string& what);
  TransferProgress Get() const;
  // Adds the bytes done, the reports of all sources so far, and the times in which the ingest was idle or
  // waited for buffers.
  void Report(TransferReport* report) const;

 private:
  void NoteBuffers(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  TransferProgress progress_ ABSL_GUARDED_BY(mutex_);                               // without the sources
  std::vector<std::shared_ptr<const StageClock>> sources_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
  BusyTime fetching_ ABSL_GUARDED_BY(mutex_);
  BusyTime under_way_ ABSL_GUARDED_BY(mutex_);
  SteadyTime first_took_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  SteadyTime last_ended_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  // The number of waits for memory, and the number of chunks that are requested now. If only the first number
  // is positive, the ingest waits for buffers.
  int wait_for_buffer_ ABSL_GUARDED_BY(mutex_) = 0;
  int requested_ ABSL_GUARDED_BY(mutex_) = 0;
  bool buffers_short_ ABSL_GUARDED_BY(mutex_) = false;
  BusyTime buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
