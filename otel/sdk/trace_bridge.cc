#include "otel/sdk/trace_bridge.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "opentelemetry/common/timestamp.h"
#include "opentelemetry/sdk/trace/random_id_generator.h"
#include "opentelemetry/trace/span.h"
#include "opentelemetry/trace/span_context.h"
#include "opentelemetry/trace/span_context_kv_iterable.h"
#include "opentelemetry/trace/span_metadata.h"
#include "opentelemetry/trace/span_startoptions.h"
#include "opentelemetry/trace/trace_state.h"
#include "otel/sdk/values.h"

namespace tensorcast::otel::sdk {
namespace {

namespace api = opentelemetry::trace;
using opentelemetry::nostd::shared_ptr;

// Set around the start of a root on this thread.
thread_local const TraceContext* wanted_trace = nullptr;

api::TraceId ToTraceId(const TraceContext& context) {
  return api::TraceId(opentelemetry::nostd::span<const uint8_t, 16>(context.trace_id.data(), 16));
}

class IdGenerator final : public opentelemetry::sdk::trace::IdGenerator {
 public:
  IdGenerator() : opentelemetry::sdk::trace::IdGenerator(true) {}
  api::SpanId GenerateSpanId() noexcept override { return random_.GenerateSpanId(); }
  api::TraceId GenerateTraceId() noexcept override {
    return wanted_trace == nullptr ? random_.GenerateTraceId() : ToTraceId(*wanted_trace);
  }

 private:
  opentelemetry::sdk::trace::RandomIdGenerator random_;
};

api::SpanContext ToSpanContext(const TraceContext& context, bool is_remote) {
  const api::SpanId span_id(opentelemetry::nostd::span<const uint8_t, 8>(context.span_id.data(), 8));
  if (context.trace_state.empty()) [[likely]] {
    return api::SpanContext(ToTraceId(context), span_id, api::TraceFlags(context.flags), is_remote);
  }
  return api::SpanContext(ToTraceId(context), span_id, api::TraceFlags(context.flags), is_remote,
                          api::TraceState::FromHeader(context.trace_state));
}

void FillContext(const api::SpanContext& from, TraceContext& to) {
  from.trace_id().CopyBytesTo(to.trace_id);
  from.span_id().CopyBytesTo(to.span_id);
  to.flags = from.trace_flags().flags();
}

api::SpanKind ToSpanKind(SpanKind kind) {
  switch (kind) {
    case SpanKind::kInternal:
      return api::SpanKind::kInternal;
    case SpanKind::kServer:
      return api::SpanKind::kServer;
    case SpanKind::kClient:
      return api::SpanKind::kClient;
    case SpanKind::kProducer:
      return api::SpanKind::kProducer;
    case SpanKind::kConsumer:
      return api::SpanKind::kConsumer;
  }
  return api::SpanKind::kInternal;
}

bool HasRemoteParent(SpanKind kind) { return kind == SpanKind::kServer || kind == SpanKind::kConsumer; }

class LinkView final : public api::SpanContextKeyValueIterable {
 public:
  LinkView(std::span<const SpanLink> links, size_t max_bytes) : links_(links), max_bytes_(max_bytes) {}
  bool ForEachKeyValue(opentelemetry::nostd::function_ref<
                       bool(api::SpanContext, const opentelemetry::common::KeyValueIterable&)>
                           callback) const noexcept override {
    return std::all_of(links_.begin(), links_.end(), [&](const SpanLink& link) {
      const AttributeView attributes({link.attributes.begin(), link.attributes.size()}, max_bytes_);
      return callback(ToSpanContext(link.context, true), attributes);
    });
  }
  size_t size() const noexcept override { return links_.size(); }

 private:
  std::span<const SpanLink> links_;
  size_t max_bytes_;
};

template <class T>
std::span<const T> AtMost(std::span<const T> items, size_t limit) {
  return items.first(std::min(items.size(), limit));
}

// The SDK of this version has no span limits of its own, so they are kept here.
class Record final : public SpanRecord {
 public:
  Record(shared_ptr<api::Span> span, const SpanLimits& limits, const SpanStart& start)
      : span_(std::move(span)),
        limits_(limits),
        start_(start.time),
        attributes_(std::min(start.attributes.size(), limits.max_attributes)),
        links_(std::min(start.links.size(), limits.max_links)) {}

  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    if (attributes_ == limits_.max_attributes) return;
    ++attributes_;
    WithValue(value, limits_.max_attribute_bytes,
              [&](const auto& converted) { span_->SetAttribute(ToNostd(key), converted); });
  }

  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override {
    if (events_ == limits_.max_events) return;
    ++events_;
    const AttributeView view(AtMost(attributes, limits_.max_attributes), limits_.max_attribute_bytes);
    const SpanTime at = time == SpanTime() ? std::chrono::system_clock::now() : time;
    span_->AddEvent(ToNostd(name), opentelemetry::common::SystemTimestamp(at), view);
  }

  // The SDK's stable interface takes links only with a span's start; a later one is kept as an event.
  void AddLink(const SpanLink& link) override {
    if (links_ == limits_.max_links) return;
    ++links_;
    const std::string context = link.context.ToTraceparent();
    const Attribute attributes[] = {{"tc.link", std::string_view(context)}};
    AddEvent("link", attributes, {});
  }

  void SetError(std::string_view type, std::string_view message) override {
    SetAttribute(attr::kErrorType.name(), type);
    const Attribute attributes[] = {{attr::kExceptionType, type}, {attr::kExceptionMessage, message}};
    AddEvent("exception", attributes, {});
    std::string storage;
    span_->SetStatus(api::StatusCode::kError,
                     ToNostd(ValidUtf8(CutUtf8(message, limits_.max_attribute_bytes), storage)));
  }

  // The SDK takes durations from the steady clock: an explicit end counts from an explicit start.
  void End(SpanTime time) override {
    api::EndSpanOptions options;
    if (start_ != SpanTime()) {
      const SpanTime end = time == SpanTime() ? std::chrono::system_clock::now() : time;
      options.end_steady_time = opentelemetry::common::SteadyTimestamp(
          kSteadyStart + std::max(end - start_, std::chrono::system_clock::duration(1)));
    }
    span_->End(options);
  }

  // Any but zero, which the SDK reads as "now".
  static constexpr std::chrono::steady_clock::time_point kSteadyStart{std::chrono::seconds(1)};

 private:
  const shared_ptr<api::Span> span_;
  const SpanLimits& limits_;
  const SpanTime start_;
  size_t attributes_;
  size_t events_ = 0;
  size_t links_;
};

class Sink final : public TraceSink {
 public:
  Sink(shared_ptr<api::Tracer> tracer, const SpanLimits& limits, bool follow_parent)
      : tracer_(std::move(tracer)), limits_(limits), follow_parent_(follow_parent) {}

  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override {
    const TraceContext& parent = *start.parent;
    const bool has_trace = parent.IsValid();
    const bool is_child = has_trace && !parent.IsUnstarted();
    if (is_child && follow_parent_ && !parent.IsSampled()) {
      context = parent;
      return nullptr;
    }
    api::StartSpanOptions options;
    options.kind = ToSpanKind(start.kind);
    if (is_child) options.parent = ToSpanContext(parent, HasRemoteParent(start.kind));
    if (start.time != SpanTime()) {
      options.start_system_time = opentelemetry::common::SystemTimestamp(start.time);
      options.start_steady_time = opentelemetry::common::SteadyTimestamp(Record::kSteadyStart);
    }
    wanted_trace = has_trace && !is_child ? &parent : nullptr;
    const AttributeView attributes(AtMost(start.attributes, limits_.max_attributes),
                                   limits_.max_attribute_bytes);
    const LinkView links(AtMost(start.links, limits_.max_links), limits_.max_attribute_bytes);
    auto span = tracer_->StartSpan(ToNostd(start.name), attributes, links, options);
    wanted_trace = nullptr;
    FillContext(span->GetContext(), context);
    if (is_child) context.trace_state = parent.trace_state;
    if (!span->IsRecording()) return nullptr;
    return std::make_unique<Record>(std::move(span), limits_, start);
  }

 private:
  const shared_ptr<api::Tracer> tracer_;
  const SpanLimits limits_;
  const bool follow_parent_;
};

}  // namespace

std::unique_ptr<opentelemetry::sdk::trace::IdGenerator> MakeIdGenerator() {
  return std::make_unique<IdGenerator>();
}

std::unique_ptr<TraceSink> MakeTraceSink(shared_ptr<api::Tracer> tracer, const SpanLimits& limits,
                                         bool follow_parent) {
  return std::make_unique<Sink>(std::move(tracer), limits, follow_parent);
}

}  // namespace tensorcast::otel::sdk
