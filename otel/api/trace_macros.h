// Macros for scopes that end with their block. Scopes become spans if telemetry is on, and slices of the
// trace file if one is written. Without a sink a macro costs a branch; only a scope evaluates its arguments.
//
//   SC_TRACE_SCOPE("Disk/Read");                        // child of the thread's current span
//   SC_TRACE_SCOPE_OF(context, "Disk/Read");            // child of a RequestContext or TraceContext
//   SC_TRACE_ATTRIBUTE(otel::attr::kSizeBytes, bytes);  // on the thread's current span
//   SC_TRACE_EVENT("refetch", {otel::attr::kReason, why});
//   SC_TRACE_ERROR(status);
#pragma once

#include "otel/api/span.h"

#define SC_TRACE_CONCAT_INNER(a, b) a##b
#define SC_TRACE_CONCAT(a, b) SC_TRACE_CONCAT_INNER(a, b)

#define SC_TRACE_SCOPE(name) ::tensorcast::otel::ScopedSpan SC_TRACE_CONCAT(sc_trace_scope_, __LINE__)(name)
#define SC_TRACE_SCOPE_OF(parent, name) \
  ::tensorcast::otel::ScopedSpan SC_TRACE_CONCAT(sc_trace_scope_, __LINE__)(name, parent)

#define SC_TRACE_ATTRIBUTE(key, value)                                                 \
  do {                                                                                 \
    if (::tensorcast::otel::IsTracing()) ::tensorcast::otel::SetAttribute(key, value); \
  } while (false)
// Arguments: the name, then any number of {key, value}.
#define SC_TRACE_EVENT(name, ...)                                                           \
  do {                                                                                      \
    if (::tensorcast::otel::IsTracing()) ::tensorcast::otel::AddEvent(name, {__VA_ARGS__}); \
  } while (false)
#define SC_TRACE_ERROR(status)                                                 \
  do {                                                                         \
    if (::tensorcast::otel::IsTracing()) ::tensorcast::otel::SetError(status); \
  } while (false)
