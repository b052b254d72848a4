// otel_benchmark compares two ways to use one SDK: by its own calls, and through otel/api. Only the
// benchmark uses this code. It has a source of its own, because sources that include OpenTelemetry see the
// distribution's Abseil.
#pragma once

#include <memory>

#include "otel/api/trace_sink.h"

namespace tensorcast::otel::sdk {

class SpanPair {
 public:
  // Recorded spans are encoded as the OTLP exporters of the SDK and of otel/sdk encode them, and are then
  // discarded. With `sampled` false, the sampler's ratio is 0.
  static std::unique_ptr<SpanPair> Create(bool sampled);
  virtual ~SpanPair() = default;

  // A root span with two attributes, by the SDK's own calls.
  virtual void RootBySdk() = 0;
  // A child of `parent` with two attributes, by the SDK's own calls.
  virtual void ChildBySdk(const TraceContext& parent) = 0;
  // The sink for otel/api.
  virtual TraceSink* sink() = 0;
};

}  // namespace tensorcast::otel::sdk
