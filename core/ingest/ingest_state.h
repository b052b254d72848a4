// What the threads of one ingest share: its plan, its sources, what its slots do next, and whether it has
// failed.
//
// Thread-safe by `mutex`. Under it no call is made to a source, the provider, the destination or a
// cancellation, nor to an availability but for what takes no lock there: an availability calls its
// observers, which take this mutex, under its own. So what is to be cancelled is returned, for CancelAll
// without the lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/ingest/ingest_plan.h"
#include "core/ingest/missing_chunk_stall.h"
#include "core/ingest/slot_scheduler.h"
#include "core/ingest/source_set.h"

namespace tensorcast {

struct IngestState {
  explicit IngestState(IngestPlan the_plan);

  // Nothing is under way, and all is done or the ingest failed.
  bool IsOver() const ABSL_SHARED_LOCKS_REQUIRED(mutex);
  [[nodiscard]] std::vector<Cancellation> GiveUpSource(SourceInUse& source, absl::Status why, bool corrupt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  [[nodiscard]] std::vector<Cancellation> GiveUp(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<Cancellation> UnderWay() const ABSL_SHARED_LOCKS_REQUIRED(mutex);

  const IngestPlan plan;
  const std::string what;  // for messages
  mutable absl::Mutex mutex;
  SourceSet sources ABSL_GUARDED_BY(mutex);
  SlotScheduler slots ABSL_GUARDED_BY(mutex);
  MissingChunkStall idle ABSL_GUARDED_BY(mutex);
  absl::Status failed ABSL_GUARDED_BY(mutex);  // why the whole ingest ends
  // The provider is being asked for more than is needed; so that can be ended.
  std::optional<Cancellation> asking ABSL_GUARDED_BY(mutex);
  std::string told_waiting ABSL_GUARDED_BY(mutex);  // what on_wait was told last
  // Chunks, for the outcome.
  uint32_t reassigned ABSL_GUARDED_BY(mutex) = 0;
  uint32_t verified ABSL_GUARDED_BY(mutex) = 0;
};

void CancelAll(const std::vector<Cancellation>& fetches);

}  // namespace tensorcast
