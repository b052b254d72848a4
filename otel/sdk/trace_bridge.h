// Our spans as the SDK's. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/nostd/shared_ptr.h"
#include "opentelemetry/sdk/trace/id_generator.h"
#include "opentelemetry/trace/tracer.h"
#include "otel/api/trace_sink.h"
#include "otel/sdk/bridge.h"

namespace tensorcast::otel::sdk {

// Random ids; but the root that is started under an unstarted context gets that context's trace id.
std::unique_ptr<opentelemetry::sdk::trace::IdGenerator> MakeIdGenerator();

// The tracer's provider uses MakeIdGenerator(). `follow_parent`: children of a parent that was not sampled
// are not either, and the SDK need not be asked.
std::unique_ptr<TraceSink> MakeTraceSink(
    opentelemetry::nostd::shared_ptr<opentelemetry::trace::Tracer> tracer, const SpanLimits& limits,
    bool follow_parent);

}  // namespace tensorcast::otel::sdk
