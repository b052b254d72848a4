// IngestPlan: the task of one ingest pipeline. IngestState: the state that the pipeline's threads share.
//
// Thread-safe by `mutex`. Do not call a source, a provider, a destination or a cancellation under the mutex.
// The methods return cancellations; the caller passes them to CancelAll without the mutex. Under the mutex,
// call only methods of an Availability that take no lock, because the observers of an Availability take the
// mutex.
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

// All pointers must outlive the pipeline.
struct IngestPlan {
  std::string subject;  // the artifact, for messages
  const ImageLayout* layout = nullptr;
  // Null: a first ingest, which computes both digests of every chunk and checks the padding.
  const Manifest* expected = nullptr;
  // For a known artifact: the chunks to bring, ascending. Not set: all.
  std::optional<std::vector<uint32_t>> chunks = {};
  Destination* destination = nullptr;
  SourceProvider* sources = nullptr;
  ProgressTracker* progress = nullptr;
  DeviceVerification device_verification = DeviceVerification::kFull;
  bool distrust_other_hosts = false;  // also compare BLAKE3 for chunks from another host
  std::optional<int> numa_node = {};  // the slots run near this node; Run's own thread does not
  // All sources are given up if they lack all missing chunks for this time while no fetch is in flight.
  absl::Duration peer_timeout = absl::InfiniteDuration();
  uint64_t seed = 0;                        // for the random order of chunks
  std::function<RequestContext()> context;  // the current context, always with the same cancellation
  // Called when a chunk is placed. `verified` is false if the policy left the chunk unverified.
  std::function<void(uint32_t chunk, bool verified)> on_chunk;
  // Called on Run's thread with a text for people, which names what the ingest waits for. Empty: the ingest
  // no longer waits.
  WaitObserver on_wait;
};

struct IngestState {
  explicit IngestState(IngestPlan the_plan);

  // Whether no fetch is in flight, and all chunks are done or the ingest has failed.
  bool IsOver() const ABSL_SHARED_LOCKS_REQUIRED(mutex);
  // GiveUpSource gives one source up, GiveUp ends the whole ingest. Both return the fetches to cancel.
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
  absl::Status failed ABSL_GUARDED_BY(mutex);  // the error that ends the whole ingest
  // Set while the ingest has a source and the provider is asked for another source. Cancels this call to the
  // provider.
  std::optional<Cancellation> asking ABSL_GUARDED_BY(mutex);
  std::string told_waiting ABSL_GUARDED_BY(mutex);  // the last text for on_wait
  // Counts of chunks, for IngestOutcome.
  uint32_t reassigned ABSL_GUARDED_BY(mutex) = 0;
  uint32_t verified ABSL_GUARDED_BY(mutex) = 0;
};

void CancelAll(const std::vector<Cancellation>& fetches);

}  // namespace tensorcast
