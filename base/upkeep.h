// Marks the traces of upkeep: work that a timer starts, not a request, such as reports to the global store
// and purges. The mark is in the trace state, so it travels to other processes. A span in such a trace is
// recorded only if it fails or takes long (otel/api/span.cc).
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
