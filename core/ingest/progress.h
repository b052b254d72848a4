// What an ingest tells of itself while it runs: how far it is, and how long its stages take with each source.
//
// Thread-safe: the pipeline's slots write, any thread that asks for progress or a report reads.
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

// One source: its stages, and what came of it.
class StageClock {
 public:
  // It comes now. `filling`: it has not every chunk yet.
  explicit StageClock(const SourceInfo& source, bool filling = false);

  // One chunk went through the stage from `start` to now. `bytes` 0 where the stage had nothing to read or
  // write: it is counted, and takes no time.
  void Passed(Stage stage, SteadyTime start, uint64_t bytes);
  // The stage failed for a chunk; the first failure's status is kept.
  void Failed(Stage stage, SteadyTime start, const absl::Status& why);

  // A chunk is asked of it; and that one came, or never will.
  void Asked(SteadyTime now);
  void Answered(SteadyTime now);
  // A chunk of it is in its place.
  void Placed(uint64_t bytes);
  // A chunk was taken back from it because it was slow.
  void Reassigned();
  // A chunk of it came into a GPU's memory without the host's.
  void CameDirectly();
  // It goes now; with a `loss` it is given up, for that reason. Only the first time counts.
  void Leave(std::optional<SourceLoss> loss, const absl::Status& status, uint32_t lost_chunks);

  // The stages that anything went through.
  std::vector<StageReport> Reports() const;
  SourceReport Source() const;

 private:
  StageReport& Extend(Stage stage, SteadyTime start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::array<StageReport, 3> stages_ ABSL_GUARDED_BY(mutex_);
  SourceReport source_ ABSL_GUARDED_BY(mutex_);  // but for `asked`
  BusyTime asked_ ABSL_GUARDED_BY(mutex_);
};

// A whole ingest. Outlives the pipeline that writes it.
class ProgressTracker {
 public:
  explicit ProgressTracker(uint64_t bytes_total);
  // Before the first chunk: what is to be brought, and what of that which was asked for is there.
  void SetPlan(uint64_t bytes_total, uint64_t bytes_present);
  // One more source is in use, until its clock says that it left.
  void AddSource(std::shared_ptr<const StageClock> clock);
  // One could not be opened. Tries of the same one in a row are told as one.
  void AddUnopened(const SourceInfo& source, const absl::Status& why);
  // A chunk is under way, from being taken for a source to its end, in its place or not.
  void Took();
  void Ended();
  // Meanwhile it may wait for memory to be fetched to, with max one wait for each chunk.
  void BeginBufferWait();
  void EndBufferWait();
  // A chunk is asked of the source with this clock; and that one came, or never will.
  void Asked(StageClock& clock);
  void Answered(StageClock& clock);
  // A chunk of that source is in its place.
  void AddDone(StageClock& clock, uint64_t bytes);
  // Empty: it does not wait for a source.
  void SetWaitingFor(const std::string& what);
  TransferProgress Get() const;
  // Adds the bytes that are there, how it went with every source so far, and for how long it was idle or
  // waited for buffers.
  void Report(TransferReport* report) const;

 private:
  void NoteBuffers(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  TransferProgress progress_ ABSL_GUARDED_BY(mutex_);                               // but for the sources
  std::vector<std::shared_ptr<const StageClock>> sources_ ABSL_GUARDED_BY(mutex_);  // as they came
  BusyTime fetching_ ABSL_GUARDED_BY(mutex_);
  BusyTime under_way_ ABSL_GUARDED_BY(mutex_);
  SteadyTime first_took_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  SteadyTime last_ended_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  // Chunks that wait for a buffer, and those that were requested: where there are only the former, buffers
  // are what is waited for.
  int wait_for_buffer_ ABSL_GUARDED_BY(mutex_) = 0;
  int requested_ ABSL_GUARDED_BY(mutex_) = 0;
  bool buffers_short_ ABSL_GUARDED_BY(mutex_) = false;
  BusyTime buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
