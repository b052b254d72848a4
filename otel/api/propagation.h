// Carrying a trace by hand: for callers whose messages are string maps. gRPC calls need none of this, their
// interceptors do it.
#pragma once

#include <map>
#include <string>

#include "base/trace_context.h"

namespace tensorcast::otel {

// Writes "traceparent" (and "tracestate" if there is any); removes both when `context` is not valid.
void InjectTrace(const TraceContext& context, std::map<std::string, std::string>& carrier);

// What InjectTrace wrote, or an invalid context when there is nothing or it is malformed. Keys are matched
// without regard to case, as W3C asks.
TraceContext ExtractTrace(const std::map<std::string, std::string>& carrier);

}  // namespace tensorcast::otel
