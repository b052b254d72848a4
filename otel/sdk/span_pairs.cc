#include "otel/sdk/span_pairs.h"

#include <utility>

#include "opentelemetry/exporters/otlp/otlp_grpc_exporter_factory.h"
#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/processor.h"
#include "opentelemetry/sdk/trace/samplers/parent_factory.h"
#include "opentelemetry/sdk/trace/samplers/trace_id_ratio_factory.h"
#include "opentelemetry/sdk/trace/tracer_provider.h"
#include "opentelemetry/sdk/trace/tracer_provider_factory.h"
#include "opentelemetry/trace/tracer.h"
#include "otel/sdk/exporters.h"
#include "otel/sdk/guards.h"
#include "otel/sdk/trace_bridge.h"

namespace tensorcast::otel::sdk {
namespace {

namespace api = opentelemetry::trace;
namespace otlp = opentelemetry::exporter::otlp;

// Both sides end in this processor, each with its exporter's recordables; a queue and its thread would only
// add the same noise to both.
class Discard final : public otel_trace::SpanProcessor {
 public:
  Discard(std::unique_ptr<otel_trace::SpanExporter> exporter, std::shared_ptr<Guard> guard)
      : exporter_(std::move(exporter)), guard_(std::move(guard)) {}
  std::unique_ptr<otel_trace::Recordable> MakeRecordable() noexcept override {
    return exporter_->MakeRecordable();
  }
  void OnStart(otel_trace::Recordable&, const api::SpanContext&) noexcept override {}
  void OnEnd(std::unique_ptr<otel_trace::Recordable>&&) noexcept override {
    if (guard_ != nullptr) guard_->Run(1, [] { return otel_common::ExportResult::kSuccess; });
  }
  bool ForceFlush(Timeout) noexcept override { return true; }
  bool Shutdown(Timeout) noexcept override { return true; }

 private:
  const std::unique_ptr<otel_trace::SpanExporter> exporter_;
  const std::shared_ptr<Guard> guard_;
};

std::unique_ptr<otel_trace::Sampler> MakeSampler(bool sampled) {
  return otel_trace::ParentBasedSamplerFactory::Create(std::shared_ptr<otel_trace::Sampler>(
      otel_trace::TraceIdRatioBasedSamplerFactory::Create(sampled ? 1 : 0)));
}

// The same span by the SDK alone and by our bridge, for the benchmark that compares what they cost.
class SpanPairImpl final : public SpanPair {
 public:
  explicit SpanPairImpl(bool sampled)
      : guard_(
            std::make_shared<Guard>(counters_, 1000, std::chrono::milliseconds(0), [](std::string_view) {})),
        plain_(otel_trace::TracerProviderFactory::Create(
            std::make_unique<Discard>(otlp::OtlpGrpcExporterFactory::Create(), nullptr),
            opentelemetry::sdk::resource::Resource::Create({}), MakeSampler(sampled))),
        tracer_(plain_->GetTracer("benchmark")),
        sink_(MakeTraceSink(
            {.processor = std::make_shared<Discard>(MakeExporters(BridgeOptions()).spans, guard_),
             .guard = guard_,
             .sampler = MakeSampler(sampled),
             .resource = opentelemetry::sdk::resource::Resource::Create({}),
             .limits = {
                 .max_attributes = 64, .max_events = 128, .max_links = 32, .max_attribute_bytes = 1024}})) {}

  void RootBySdk() override {
    auto span =
        tracer_->StartSpan("Component/Operation", {{"tc.lane", "ucx"}, {"tc.size.bytes", int64_t{42}}});
    span->End();
  }

  void ChildBySdk(const TraceContext& parent) override {
    api::StartSpanOptions options;
    options.parent = api::SpanContext(
        api::TraceId(opentelemetry::nostd::span<const uint8_t, 16>(parent.trace_id.data(), 16)),
        api::SpanId(opentelemetry::nostd::span<const uint8_t, 8>(parent.span_id.data(), 8)),
        api::TraceFlags(parent.flags), false);
    auto span = tracer_->StartSpan("Component/Operation",
                                   {{"tc.lane", "ucx"}, {"tc.size.bytes", int64_t{42}}}, options);
    span->End();
  }

  TraceSink* sink() override { return sink_.get(); }

 private:
  SignalCounters counters_;
  const std::shared_ptr<Guard> guard_;
  const std::unique_ptr<otel_trace::TracerProvider> plain_;
  const opentelemetry::nostd::shared_ptr<api::Tracer> tracer_;
  const std::unique_ptr<TraceSink> sink_;
};

}  // namespace

std::unique_ptr<SpanPair> SpanPair::Create(bool sampled) { return std::make_unique<SpanPairImpl>(sampled); }

}  // namespace tensorcast::otel::sdk
