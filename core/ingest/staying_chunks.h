// The chunks that stay in an advance (advance.h), because they are equal in both versions, as a source. They
// are compared where they are, in the memory of the base: in host memory their source gives their place, and
// a GPU digests them there.
//
// The provider belongs to its ingest's thread. It gives its source once. After a wrong chunk the chain asks
// it again and gets no source: what is missing then comes from the next providers.
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
// reports this. Null, too, if the advance has a gate: nothing is in its place before the commit. At most
// `threads` chunks are compared at the same time. `devices` must outlive the provider and its source.
// REQUIRES: the advance has begun, or has a gate.
std::unique_ptr<NodeProvider> FindStayingChunks(DeviceRuntime* devices, int threads,
                                                const IngestRequest& request, ProgressTracker& progress);

}  // namespace tensorcast
