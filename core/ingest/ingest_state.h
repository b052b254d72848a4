// One ingest: what its pipeline is told of it, and what its threads share, which are its sources, what its
// slots do next, and whether it has failed.
//
// Thread-safe by `mutex`. Under it no call is made to a source, the provider, the destination or a
// cancellation, nor to an availability but for what takes no lock there: an availability calls its
// observers, which take this mutex, under its own. So what is to be cancelled is returned, for CancelAll
// without the lock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/ingest/destination.h"
#include "core/ingest/device_verification.h"
#include "core/ingest/missing_chunk_stall.h"
#include "core/ingest/progress.h"
#include "core/ingest/slot_scheduler.h"
#include "core/ingest/source_set.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// What is to be brought, where to, where from, and what is to be told meanwhile. All pointers must outlive
// the pipeline.
struct IngestPlan {
  std::string subject;  // the artifact, for messages
  const ImageLayout* layout = nullptr;
  // Null: a first ingest, which computes both digests of every chunk and checks the padding.
  const Manifest* expected = nullptr;
  // For a known artifact: the chunks that are to be brought, ascending. Not set: all.
  std::optional<std::vector<uint32_t>> chunks = {};
  Destination* destination = nullptr;
  SourceProvider* sources = nullptr;
  ProgressTracker* progress = nullptr;
  DeviceVerification device_verification = DeviceVerification::kFull;
  bool distrust_other_hosts = false;  // compare BLAKE3 too of what comes from another host
  std::optional<int> numa_node = {};  // near which the slots run, but for Run's own thread
  // Sources that have had nothing for so long, while nothing was under way, are given up.
  absl::Duration peer_timeout = absl::InfiniteDuration();
  uint64_t seed = 0;                        // of the order of chunks
  std::function<RequestContext()> context;  // as it is now; always the same cancellation
  // This chunk is in its place; and verified, unless the policy lets it be.
  std::function<void(uint32_t chunk, bool verified)> on_chunk;
  // Told, on Run's thread, what is waited for, for people; an empty text: it goes on.
  WaitObserver on_wait;
};

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
