// The cost of instrumentation: off, beside an empty loop; on, beside the SDK's own calls in the same run.
#include <benchmark/benchmark.h>

#include "otel/api/flight_recorder.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/trace_macros.h"
#include "otel/sdk/span_pairs.h"

namespace tensorcast::otel::sdk {
namespace {

void EmptyLoop(benchmark::State& state) {
  for (auto _ : state) benchmark::ClobberMemory();
}
BENCHMARK(EmptyLoop);

void ScopeOff(benchmark::State& state) {
  for (auto _ : state) {
    SC_TRACE_SCOPE("Component/Operation");
    benchmark::ClobberMemory();
  }
}
BENCHMARK(ScopeOff);

void SpanWithTwoAttributesOff(benchmark::State& state) {
  const RequestContext context = RequestContext::Background();
  int64_t bytes = 42;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bytes);
    Span span("Component/Operation", context, {{attr::kLane, "ucx"}, {attr::kSizeBytes, bytes}});
    benchmark::ClobberMemory();
  }
}
BENCHMARK(SpanWithTwoAttributesOff);

// With the flight recorder alone: of a call, and of a transfer.
void SpanWithRecorder(benchmark::State& state, const char* name) {
  const FlightRecorder recorder;
  const RequestContext context = RequestContext::Background();
  int64_t bytes = 42;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bytes);
    Span span(name, context, {{attr::kLane, "ucx"}, {attr::kSizeBytes, bytes}});
    benchmark::ClobberMemory();
  }
}
BENCHMARK_CAPTURE(SpanWithRecorder, Call, "GlobalStore/ResolveKey");
BENCHMARK_CAPTURE(SpanWithRecorder, Transfer, "P2P/Pull");

void CounterOff(benchmark::State& state) {
  for (auto _ : state) {
    metrics::kP2pBytes.Add(1, {"ucx", "receive"});
    benchmark::ClobberMemory();
  }
}
BENCHMARK(CounterOff);

enum Parent { kRoot, kSampledParent };

TraceContext MakeParent(int parent) {
  if (parent == kRoot) return {};
  TraceContext context = TraceContext::NewRoot();
  context.trace_state.clear();
  return context;
}

void SdkSpan(benchmark::State& state, bool sampled, Parent kind) {
  const auto pair = SpanPair::Create(sampled);
  const TraceContext parent = MakeParent(kind);
  for (auto _ : state) kind == kRoot ? pair->RootBySdk() : pair->ChildBySdk(parent);
}

void OurSpan(benchmark::State& state, bool sampled, Parent kind) {
  const auto pair = SpanPair::Create(sampled);
  InstallTraceSink(SinkKind::kTelemetry, pair->sink());
  const TraceContext parent = MakeParent(kind);
  for (auto _ : state) {
    Span span("Component/Operation", parent, {{attr::kLane, "ucx"}, {attr::kSizeBytes, 42}});
  }
  InstallTraceSink(SinkKind::kTelemetry, nullptr);
}

BENCHMARK_CAPTURE(SdkSpan, SampledOut, false, kRoot);
BENCHMARK_CAPTURE(OurSpan, SampledOut, false, kRoot);
BENCHMARK_CAPTURE(SdkSpan, Recorded, true, kRoot);
BENCHMARK_CAPTURE(OurSpan, Recorded, true, kRoot);
BENCHMARK_CAPTURE(SdkSpan, RecordedChild, true, kSampledParent);
BENCHMARK_CAPTURE(OurSpan, RecordedChild, true, kSampledParent);

}  // namespace
}  // namespace tensorcast::otel::sdk
