// Our spans on the SDK's span pipeline. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/processor.h"
#include "opentelemetry/sdk/trace/sampler.h"
#include "otel/api/trace_sink.h"
#include "otel/sdk/bridge.h"
#include "otel/sdk/guards.h"

namespace tensorcast::otel::sdk {

// What the spans of one process have in common.
struct SpanPipeline {
  std::shared_ptr<opentelemetry::sdk::trace::SpanProcessor> processor;
  std::shared_ptr<Guard> guard;  // of the processor's queue
  SamplerKind sampler_kind = SamplerKind::kParentRatio;
  std::shared_ptr<opentelemetry::sdk::trace::Sampler> sampler;  // of that kind
  opentelemetry::sdk::resource::Resource resource;
  SpanLimits limits;
  bool file_paths = false;  // whether error messages keep them
};

// Drives the SDK's sampler, recordables and processor itself. The SDK's own tracer and span would do the same
// behind a lock for each call, a record for each of any number of processors and the thread's current span,
// none of which is of use here, and doubled what a span of an RPC costs.
//
// What is recorded points into the sink: it must outlive its spans, those in the processor's queue included.
std::unique_ptr<TraceSink> MakeTraceSink(SpanPipeline pipeline);

}  // namespace tensorcast::otel::sdk
