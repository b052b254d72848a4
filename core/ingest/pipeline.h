// IngestPipeline runs one ingest: fetch -> verify -> place -> commit for every wanted chunk of an image, from
// several sources at the same time.
//
// Slots are threads that request, verify and place chunks (slot_scheduler.h). All sources share the slots. A
// fetch occupies a slot only if the source blocks (ChunkSource::blocks).
//
// Run's own thread is the control thread (ingest_control.h). It asks the provider for sources, destroys
// sources that were given up, and reports what the ingest waits for. If there is only one source and no other
// source is expected, the control thread is a slot, too.
//
// Back-pressure: a chunk that needs a buffer of the destination (chunk_path.h) gets the buffer before the
// chunk is requested. So a slow device or disk stops its fetches.
//
// Any thread may read the progress (progress.h) while Run runs.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/ingest/chunk_flow.h"
#include "core/ingest/ingest_control.h"
#include "core/ingest/ingest_state.h"
#include "core/ingest/progress_stall.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct IngestOutcome {
  absl::Status status;
  std::vector<ChunkDigests> digests;  // the digests of every fetched chunk, if the status is OK
  std::vector<SourceChange> changes;
  std::vector<SourceFailure> untold;  // sources that were given up and not yet reported to the provider
  uint32_t refetched_chunks = 0;
  uint32_t reassigned_chunks = 0;
  uint32_t verified_chunks = 0;
};

class IngestPipeline {
 public:
  explicit IngestPipeline(IngestPlan plan);

  // Blocks until every wanted chunk is done, no source is left, the destination fails, or the context ends.
  // Call it once.
  IngestOutcome Run();

 private:
  // The next work of a thread; the work runs without the lock. Null: the ingest is over.
  using Step = std::function<void()>;

  void TakeSteps(bool in_control);
  Step NextStep(bool in_control);
  Step SlotStep(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);  // null: none now
  void AwaitChange(bool in_control, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  SteadyTime NextControl(const RequestContext& context) const ABSL_SHARED_LOCKS_REQUIRED(state_.mutex);
  // With only one source, the only event for the control thread is the end of this source. The slot that
  // fetches sees this end.
  bool ControlIsSlot() const ABSL_SHARED_LOCKS_REQUIRED(state_.mutex) {
    return started_slots_ == 0 || control_.IsAlone();
  }
  // Returns fetches for the caller to cancel without the lock.
  [[nodiscard]] std::vector<Cancellation> LookAgain(SteadyTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  int SlotsWanted() const ABSL_SHARED_LOCKS_REQUIRED(state_.mutex);
  void StartSlots();
  void CancelFetches();

  IngestState state_;
  ChunkFlow chunks_;
  IngestControl control_;
  std::vector<std::thread> slots_;  // Run's thread only
  int started_slots_ ABSL_GUARDED_BY(state_.mutex) = 0;
  bool cancelled_ ABSL_GUARDED_BY(state_.mutex) = false;
  SteadyTime next_look_ ABSL_GUARDED_BY(state_.mutex) = SteadyTime::InfinitePast();  // for overdue fetches
  ProgressStall stall_ ABSL_GUARDED_BY(state_.mutex);  // of all sources in use together
};

}  // namespace tensorcast
