// The two sides of the benchmark: the SDK set up once, used by its own calls or through our api. Separate
// from the benchmark, because sources that include OpenTelemetry see the distribution's Abseil. Private to
// it.
#pragma once

#include <memory>

#include "otel/api/trace_sink.h"

namespace tensorcast::otel::sdk {

class SpanPair {
 public:
  // Recorded spans are encoded as by the OTLP exporter (the SDK's, and ours) and then discarded. With
  // `sampled` false, the sampler's ratio is 0.
  static std::unique_ptr<SpanPair> Create(bool sampled);
  virtual ~SpanPair() = default;

  // A root span with two attributes, by the SDK's own calls.
  virtual void RootBySdk() = 0;
  // A child of `parent` with two attributes, by the SDK's own calls.
  virtual void ChildBySdk(const TraceContext& parent) = 0;
  // The sink for our api.
  virtual TraceSink* sink() = 0;
};

}  // namespace tensorcast::otel::sdk
