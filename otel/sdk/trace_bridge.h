// Passes the spans of otel/api to the SDK's span pipeline. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/processor.h"
#include "opentelemetry/sdk/trace/sampler.h"
#include "otel/api/trace_sink.h"
#include "otel/sdk/bridge.h"
#include "otel/sdk/guards.h"

namespace tensorcast::otel::sdk {

// The state that all spans of one process share.
struct SpanPipeline {
  std::shared_ptr<opentelemetry::sdk::trace::SpanProcessor> processor;
  std::shared_ptr<Guard> guard;  // of the processor's queue
  SamplerKind sampler_kind = SamplerKind::kParentRatio;
  std::shared_ptr<opentelemetry::sdk::trace::Sampler> sampler;  // of kind sampler_kind
  opentelemetry::sdk::resource::Resource resource;
  SpanLimits limits;
  bool file_paths = false;  // keep file paths in error messages
};

// The sink drives the SDK's sampler, recordables and processor directly. The SDK's tracer and span would
// double the cost of a span of an RPC.
//
// Recorded spans refer to the sink, so the sink must outlive its spans, including those in the processor's
// queue.
std::unique_ptr<TraceSink> MakeTraceSink(SpanPipeline pipeline);

}  // namespace tensorcast::otel::sdk
