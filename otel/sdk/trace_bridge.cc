#include "otel/sdk/trace_bridge.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/text.h"
#include "opentelemetry/common/timestamp.h"
#include "opentelemetry/sdk/instrumentationscope/instrumentation_scope.h"
#include "opentelemetry/sdk/trace/random_id_generator.h"
#include "opentelemetry/sdk/trace/recordable.h"
#include "opentelemetry/trace/span_context.h"
#include "opentelemetry/trace/span_context_kv_iterable.h"
#include "opentelemetry/trace/span_metadata.h"
#include "opentelemetry/trace/trace_state.h"
#include "otel/sdk/hidden_paths.h"
#include "otel/sdk/otlp_encoders.h"
#include "otel/sdk/values.h"

namespace tensorcast::otel::sdk {
namespace {

namespace api = opentelemetry::trace;
namespace sdk_trace = opentelemetry::sdk::trace;

api::TraceId ToTraceId(const TraceContext& context) {
  return api::TraceId(opentelemetry::nostd::span<const uint8_t, 16>(context.trace_id.data(), 16));
}

api::SpanId ToSpanId(const TraceContext& context) {
  return api::SpanId(opentelemetry::nostd::span<const uint8_t, 8>(context.span_id.data(), 8));
}

api::SpanContext ToSpanContext(const TraceContext& context, bool is_remote) {
  if (context.trace_state.empty()) [[likely]]
    return api::SpanContext(ToTraceId(context), ToSpanId(context), api::TraceFlags(context.flags), is_remote);
  return api::SpanContext(ToTraceId(context), ToSpanId(context), api::TraceFlags(context.flags), is_remote,
                          api::TraceState::FromHeader(context.trace_state));
}

// Both enumerations are OpenTelemetry's, in its order.
static_assert(static_cast<int>(SpanKind::kInternal) == static_cast<int>(api::SpanKind::kInternal) &&
              static_cast<int>(SpanKind::kConsumer) == static_cast<int>(api::SpanKind::kConsumer));
api::SpanKind ToSpanKind(SpanKind kind) { return static_cast<api::SpanKind>(kind); }

bool HasRemoteParent(SpanKind kind) { return kind == SpanKind::kServer || kind == SpanKind::kConsumer; }

template <class T>
std::span<const T> AtMost(std::span<const T> items, size_t limit) {
  return items.first(std::min(items.size(), limit));
}

void Write(const SpanLink& link, const SpanLimits& limits, sdk_trace::Recordable& to) {
  const AttributeView attributes({link.attributes.begin(), link.attributes.size()},
                                 limits.max_attribute_bytes);
  to.AddLink(ToSpanContext(link.context, true), attributes);
}

// What a span's limits cut.
struct Dropped {
  uint32_t attributes = 0;
  uint32_t events = 0;
  uint32_t links = 0;
};

// Ours alone takes it: the SDK's recordable, which the console has, has no word for it.
void Write(const Dropped& dropped, sdk_trace::Recordable& to) {
  if (dropped.attributes + dropped.events + dropped.links == 0) [[likely]]
    return;
  if (auto* const ours = dynamic_cast<SpanEncoder*>(&to)) {
    ours->SetDropped(dropped.attributes, dropped.events, dropped.links);
  }
}

uint32_t Excess(size_t count, size_t limit) {
  return static_cast<uint32_t>(count > limit ? count - limit : 0);
}

// The SDK of this version has no span limits of its own, so they are kept here.
class Record final : public SpanRecord {
 public:
  Record(std::unique_ptr<sdk_trace::Recordable> span, const SpanPipeline& pipeline, const SpanStart& start)
      : span_(std::move(span)),
        pipeline_(pipeline),
        start_(start.time),
        attributes_(std::min(start.attributes.size(), limits_.max_attributes)),
        links_(std::min(start.links.size(), limits_.max_links)),
        dropped_{.attributes = Excess(start.attributes.size(), limits_.max_attributes),
                 .links = Excess(start.links.size(), limits_.max_links)} {}

  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    if (attributes_ == limits_.max_attributes) {
      ++dropped_.attributes;
      return;
    }
    ++attributes_;
    WithValue(value, limits_.max_attribute_bytes,
              [&](const auto& converted) { span_->SetAttribute(ToNostd(key), converted); });
  }

  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override {
    if (events_ == limits_.max_events) {
      ++dropped_.events;
      return;
    }
    ++events_;
    const AttributeView view(AtMost(attributes, limits_.max_attributes), limits_.max_attribute_bytes);
    const SpanTime at = time == SpanTime() ? std::chrono::system_clock::now() : time;
    span_->AddEvent(ToNostd(name), opentelemetry::common::SystemTimestamp(at), view);
  }

  void AddLink(const SpanLink& link) override {
    if (links_ == limits_.max_links) {
      ++dropped_.links;
      return;
    }
    ++links_;
    Write(link, limits_, *span_);
  }

  void SetError(std::string_view type, std::string_view message) override {
    std::string hidden;
    // Paths tell what users work on, and leave the host only where that is configured.
    if (!pipeline_.file_paths) message = hidden = HidePaths(message);
    SetAttribute(attr::kErrorType.name(), type);
    const Attribute attributes[] = {{attr::kExceptionType, type}, {attr::kExceptionMessage, message}};
    AddEvent("exception", attributes, {});
    std::string storage;
    span_->SetStatus(api::StatusCode::kError,
                     ToNostd(ValidUtf8(CutUtf8(message, limits_.max_attribute_bytes), storage)));
  }

  // A duration is of the steady clock; but an explicit end counts from an explicit start.
  void End(SpanTime time) override {
    std::chrono::nanoseconds duration = std::chrono::steady_clock::now() - began_;
    if (start_ != SpanTime()) {
      duration = (time == SpanTime() ? std::chrono::system_clock::now() : time) - start_;
    }
    span_->SetDuration(std::max(duration, std::chrono::nanoseconds(1)));
    Write(dropped_, *span_);
    // A full queue drops the span here, and counts it.
    if (pipeline_.guard->Admit()) pipeline_.processor->OnEnd(std::move(span_));
  }

 private:
  std::unique_ptr<sdk_trace::Recordable> span_;
  // The sink's, which lives as long as the process (KeepForever).
  const SpanPipeline& pipeline_;
  const SpanLimits& limits_ = pipeline_.limits;
  const SpanTime start_;  // the epoch: that of `began_`
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  size_t attributes_;
  size_t events_ = 0;
  size_t links_;
  Dropped dropped_;
};

class SpanSink final : public TraceSink {
 public:
  explicit SpanSink(SpanPipeline pipeline)
      : pipeline_(std::move(pipeline)),
        scope_(opentelemetry::sdk::instrumentationscope::InstrumentationScope::Create(
            kScopeName, kScopeVersion, kSchemaUrl)) {}

  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override {
    const TraceContext& parent = *start.parent;
    // Ids are there already where the span was reserved, or another sink gave them.
    if (!context.IsValid()) Identify(parent, start.name, start.kind, context);
    // A span that is not sampled costs its ids and no more.
    if (!context.IsSampled()) return nullptr;
    const bool is_child = parent.IsValid() && !parent.IsUnstarted();
    return StartRecorded(start, is_child ? ToSpanId(parent) : api::SpanId(), ToSpanContext(context, false));
  }

  TraceContext Reserve(const TraceContext& parent) override {
    TraceContext context;
    Identify(parent, "", SpanKind::kInternal, context);
    return context;
  }

 private:
  // Gives a span its ids and decides whether it is recorded. What has an unsampled parent stays that parent.
  void Identify(const TraceContext& parent, std::string_view name, SpanKind kind, TraceContext& context) {
    const bool has_trace = parent.IsValid();
    const bool is_child = has_trace && !parent.IsUnstarted();
    // Below a sampled parent everything is sampled, so the sampler is not asked.
    const bool follows = is_child && pipeline_.sampler_kind == SamplerKind::kParentRatio;
    const bool asks_parent = pipeline_.sampler_kind == SamplerKind::kParentRatio ||
                             pipeline_.sampler_kind == SamplerKind::kAlwaysOff;
    if (is_child && asks_parent && !parent.IsSampled()) {
      context = parent;
      return;
    }
    const api::TraceId trace_id = has_trace ? ToTraceId(parent) : ids_.GenerateTraceId();
    const api::SpanId span_id = ids_.GenerateSpanId();
    const bool recorded = follows || IsSampled(parent, is_child, name, kind, trace_id);

    trace_id.CopyBytesTo(context.trace_id);
    span_id.CopyBytesTo(context.span_id);
    context.flags = recorded ? api::TraceFlags::kIsSampled : 0;
    // What other vendors wrote there is passed on as it is.
    if (is_child) context.trace_state = parent.trace_state;
  }

  // The samplers that there are look at nothing but the parent and the trace's id.
  bool IsSampled(const TraceContext& parent, bool is_child, std::string_view name, SpanKind kind,
                 const api::TraceId& trace_id) const {
    return pipeline_.sampler
        ->ShouldSample(
            is_child ? ToSpanContext(parent, HasRemoteParent(kind)) : api::SpanContext::GetInvalid(),
            trace_id, ToNostd(name), ToSpanKind(kind), opentelemetry::common::NoopKeyValueIterable(),
            api::NullSpanContext())
        .IsSampled();
  }

  // Without the processor's OnStart: those that there are do nothing in it.
  std::unique_ptr<SpanRecord> StartRecorded(const SpanStart& start, const api::SpanId& parent,
                                            const api::SpanContext& context) const {
    const SpanLimits& limits = pipeline_.limits;
    std::unique_ptr<sdk_trace::Recordable> span = pipeline_.processor->MakeRecordable();
    span->SetIdentity(context, parent);
    span->SetTraceFlags(context.trace_flags());
    span->SetName(ToNostd(start.name));
    span->SetSpanKind(ToSpanKind(start.kind));
    span->SetResource(pipeline_.resource);
    span->SetInstrumentationScope(*scope_);
    span->SetStartTime(opentelemetry::common::SystemTimestamp(
        start.time == SpanTime() ? std::chrono::system_clock::now() : start.time));
    AttributeView(AtMost(start.attributes, limits.max_attributes), limits.max_attribute_bytes)
        .ForEachKeyValue([&](auto key, const auto& value) noexcept {
          span->SetAttribute(key, value);
          return true;
        });
    for (const SpanLink& link : AtMost(start.links, limits.max_links)) Write(link, limits, *span);
    return std::make_unique<Record>(std::move(span), pipeline_, start);
  }

  const SpanPipeline pipeline_;
  const std::unique_ptr<opentelemetry::sdk::instrumentationscope::InstrumentationScope> scope_;
  sdk_trace::RandomIdGenerator ids_;
};

}  // namespace

std::unique_ptr<TraceSink> MakeTraceSink(SpanPipeline pipeline) {
  return std::make_unique<SpanSink>(std::move(pipeline));
}

}  // namespace tensorcast::otel::sdk
