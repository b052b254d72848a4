// One ingest at work: fetch -> verify -> place -> commit for every chunk that is wanted of an image, from
// several sources at once.
//
// Slots, a thread each, take whatever step can be taken (slot_scheduler.h): a chunk that arrived is verified
// and sent to its place (a device copies on while no slot waits), else one of them awaits a chunk on that
// way, and the others have the picker name the next chunk for one of the sources. The slots are shared by
// all sources; one that has nothing to give holds none, and neither does a fetch of a source that needs no
// thread while it fetches.
//
// Run's own thread is in control (ingest_control.h): it asks the provider for sources, which join and leave
// while the slots work, destroys those that were given up, and tells what waits for what. While the only
// source is one of which no more is to be expected it is a slot as well.
//
// Credit runs backwards. A chunk is taken within its source's window, then a buffer of the destination where
// its way needs one (chunk_path.h), then it is requested. So a slow device or disk stops the fetches for it,
// and no slot holds a buffer that waits for bytes that no source has.
//
// Run is called once; progress may be read from any thread meanwhile.
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
  std::vector<ChunkDigests> digests;  // of every chunk that was brought when the status is OK
  std::vector<SourceChange> changes;
  std::vector<SourceFailure> untold;  // sources given up, of which the provider does not know yet
  uint32_t refetched_chunks = 0;
  uint32_t reassigned_chunks = 0;
  uint32_t verified_chunks = 0;
};

class IngestPipeline {
 public:
  explicit IngestPipeline(IngestPlan plan);

  // Blocks until every chunk that is wanted is done, or no source is left, or the destination failed, or the
  // context ended. To be called once.
  IngestOutcome Run();

 private:
  // What a thread does next, without the lock. Null: everything is over.
  using Step = std::function<void()>;

  void TakeSteps(bool in_control);
  Step NextStep(bool in_control);
  Step SlotStep(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);  // null: none now
  void AwaitChange(bool in_control, const RequestContext& context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  SteadyTime NextControl(const RequestContext& context) const ABSL_SHARED_LOCKS_REQUIRED(state_.mutex);
  // With one source alone there is nothing to control but its end, which its fetching slot sees.
  bool ControlIsSlot() const ABSL_SHARED_LOCKS_REQUIRED(state_.mutex) {
    return started_slots_ == 0 || control_.IsAlone();
  }
  // Fetches for the caller to cancel, without the lock.
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
