// One ingest as its pipeline is told of it: what is to be brought, where to, where from, and what is to be
// told meanwhile. All pointers must outlive the pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/ingest/destination.h"
#include "core/ingest/device_verification.h"
#include "core/ingest/progress.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

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

}  // namespace tensorcast
