// Marks the traces of upkeep: work that a timer starts, such as reports to the global store and purges. The
// mark travels in the trace state to other processes. A span of such a trace is recorded only if it fails or
// takes long.
#pragma once

#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/trace_context.h"

namespace tensorcast {

// A new upkeep trace: random ids, not sampled.
TraceContext NewUpkeepTrace();
bool IsUpkeep(const TraceContext& trace);

// A context with a new upkeep trace and a fresh request id.
RequestContext UpkeepContext(absl::Duration timeout);

}  // namespace tensorcast
