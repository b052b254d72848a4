// A source of the chunks that stay in an advance (advance.h) because they are equal in both versions. The
// chunks are compared in place, in the memory of the base. In host memory the source returns their place; on
// a GPU, the GPU digests them.
//
// The provider belongs to its ingest's thread. It gives its source once. After a wrong chunk the chain asks
// the provider again and gets no source; the next providers then bring the missing chunks.
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

// A provider of the chunks that are equal in both versions, in place. Null if there are none; `progress` then
// reports this. Null, too, if the advance has a gate: no chunk is in its place before the commit. At most
// `threads` chunks are compared at the same time. `devices` must outlive the provider and its source.
// REQUIRES: the advance has begun, or has a gate.
std::unique_ptr<NodeProvider> FindStayingChunks(DeviceRuntime* devices, int threads,
                                                const IngestRequest& request, ProgressTracker& progress);

}  // namespace tensorcast
