// The source of the chunks that are equal in both versions of an advance (advance.h). These chunks stay in
// the memory of the base. The ingest verifies the chunks in place.
//
// The provider gives its source once. After a wrong chunk, later providers (provider_chain.h) bring the
// missing chunks. The thread of the ingest owns the provider.
#pragma once

#include <memory>

#include "core/device/device_runtime.h"
#include "core/ingest/advance.h"
#include "core/ingest/ingest_request.h"
#include "core/ingest/progress.h"
#include "core/ingest/provider_chain.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// The earlier version as a source in transfer reports.
SourceInfo AdvanceSourceInfo(const Advance& advance);

// Returns the provider of the equal chunks. Null if there are none; `progress` reports this. Also null if the
// advance has a gate. At most `threads` chunks are compared at the same time. `devices` must outlive the
// provider and its source. REQUIRES: the advance has begun, or has a gate.
std::unique_ptr<NodeProvider> FindStayingChunks(DeviceRuntime* devices, int threads,
                                                const IngestRequest& request, ProgressTracker& progress);

}  // namespace tensorcast
