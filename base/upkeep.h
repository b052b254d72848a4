// Work that a clock starts and no request asks for: reports to the global store, purges. Its trace is marked,
// in its trace state, so that the mark travels to other processes; a span below it is recorded only when it
// fails or takes long (otel/api/span.cc).
#pragma once

#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/trace_context.h"

namespace tensorcast {

// A fresh trace of upkeep: random ids, not sampled.
TraceContext NewUpkeepTrace();
bool IsUpkeep(const TraceContext& trace);

// A context with such a trace and a fresh request id.
RequestContext UpkeepContext(absl::Duration timeout);

}  // namespace tensorcast
