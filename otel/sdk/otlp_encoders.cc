#include "otel/sdk/otlp_encoders.h"

#include "opentelemetry/logs/severity.h"
#include "opentelemetry/trace/span_context.h"
#include "opentelemetry/trace/span_id.h"
#include "opentelemetry/trace/span_metadata.h"
#include "opentelemetry/trace/trace_flags.h"
#include "opentelemetry/trace/trace_id.h"
#include "opentelemetry/trace/trace_state.h"
#include "otel/sdk/otlp_bytes.h"

namespace tensorcast::otel::sdk {
namespace {

using namespace protobuf;

// Field numbers of opentelemetry-proto 1.x.
namespace span_field {
enum : uint32_t {
  kTraceId = 1,
  kSpanId,
  kTraceState,
  kParentSpanId,
  kName,
  kKind,
  kStart,
  kEnd,
  kAttributes,
  kDroppedAttributes,
  kEvents,
  kDroppedEvents,
  kLinks,
  kDroppedLinks,
  kStatus,
  kFlags
};
}
namespace event_field {
enum : uint32_t { kTime = 1, kName, kAttributes };
}
namespace link_field {
enum : uint32_t { kTraceId = 1, kSpanId, kTraceState, kAttributes };
}
namespace status_field {
enum : uint32_t { kMessage = 2, kCode };
}
namespace log_field {
enum : uint32_t {
  kTime = 1,
  kSeverityNumber,
  kSeverityText,
  kBody = 5,
  kAttributes,
  kFlags = 8,
  kTraceId,
  kSpanId,
  kObservedTime
};
}

template <class String>
void AppendTraceState(String& out, uint32_t field, const opentelemetry::trace::SpanContext& context) {
  const auto& state = context.trace_state();
  if (state != nullptr && !state->Empty()) AppendBytes(out, field, state->ToHeader());
}

}  // namespace

// Fields of a protobuf message may come in any order, so each is appended as it becomes known and nothing is
// kept to be put together at the end.
void SpanEncoder::SetIdentity(const otel_api::trace::SpanContext& context,
                              otel_api::trace::SpanId parent) noexcept {
  AppendId(bytes_, span_field::kTraceId, context.trace_id());
  AppendId(bytes_, span_field::kSpanId, context.span_id());
  if (parent.IsValid()) AppendId(bytes_, span_field::kParentSpanId, parent);
  AppendTraceState(bytes_, span_field::kTraceState, context);
}

void SpanEncoder::SetAttribute(otel_api::nostd::string_view key,
                               const otel_api::common::AttributeValue& value) noexcept {
  AppendKeyValue(bytes_, span_field::kAttributes, View(key), nostd::visit(ToAnyValue(), value));
}

void SpanEncoder::AddEvent(otel_api::nostd::string_view name, otel_api::common::SystemTimestamp time,
                           const otel_api::common::KeyValueIterable& attributes) noexcept {
  std::string event;
  AppendFixed64(event, event_field::kTime, time.time_since_epoch().count());
  AppendBytes(event, event_field::kName, View(name));
  AppendAttributes(event, event_field::kAttributes, attributes);
  AppendBytes(bytes_, span_field::kEvents, event);
}

void SpanEncoder::AddLink(const otel_api::trace::SpanContext& context,
                          const otel_api::common::KeyValueIterable& attributes) noexcept {
  std::string link;
  AppendId(link, link_field::kTraceId, context.trace_id());
  AppendId(link, link_field::kSpanId, context.span_id());
  AppendTraceState(link, link_field::kTraceState, context);
  AppendAttributes(link, link_field::kAttributes, attributes);
  AppendBytes(bytes_, span_field::kLinks, link);
}

void SpanEncoder::SetStatus(otel_api::trace::StatusCode code, otel_api::nostd::string_view why) noexcept {
  std::string status;
  // OTLP's numbers are the SDK's. A message belongs to errors only.
  AppendUint(status, status_field::kCode, static_cast<uint64_t>(code));
  if (code == otel_api::trace::StatusCode::kError) AppendBytes(status, status_field::kMessage, View(why));
  AppendBytes(bytes_, span_field::kStatus, status);
}

void SpanEncoder::SetName(otel_api::nostd::string_view name) noexcept {
  AppendBytes(bytes_, span_field::kName, View(name));  // of several the last counts
}

void SpanEncoder::SetTraceFlags(otel_api::trace::TraceFlags flags) noexcept {
  AppendFixed32(bytes_, span_field::kFlags, flags.flags());
}

void SpanEncoder::SetSpanKind(otel_api::trace::SpanKind kind) noexcept {
  // OTLP begins with one that is unspecified.
  AppendUint(bytes_, span_field::kKind, static_cast<uint64_t>(kind) + 1);
}

void SpanEncoder::SetStartTime(otel_api::common::SystemTimestamp time) noexcept {
  // The start is kept, since OTLP has the end of a span where the SDK gives its duration.
  start_ = time.time_since_epoch();
  AppendFixed64(bytes_, span_field::kStart, start_.count());
}

void SpanEncoder::SetDuration(std::chrono::nanoseconds duration) noexcept {
  AppendFixed64(bytes_, span_field::kEnd, (start_ + duration).count());
}

void SpanEncoder::SetDropped(uint32_t attributes, uint32_t events, uint32_t links) noexcept {
  if (attributes > 0) AppendUint(bytes_, span_field::kDroppedAttributes, attributes);
  if (events > 0) AppendUint(bytes_, span_field::kDroppedEvents, events);
  if (links > 0) AppendUint(bytes_, span_field::kDroppedLinks, links);
}

void LogEncoder::SetTimestamp(otel_api::common::SystemTimestamp time) noexcept {
  AppendFixed64(bytes_, log_field::kTime, time.time_since_epoch().count());
}

void LogEncoder::SetObservedTimestamp(otel_api::common::SystemTimestamp time) noexcept {
  AppendFixed64(bytes_, log_field::kObservedTime, time.time_since_epoch().count());
}

void LogEncoder::SetSeverity(otel_api::logs::Severity severity) noexcept {
  // OTLP's numbers are the SDK's.
  const auto number = static_cast<size_t>(severity);
  AppendUint(bytes_, log_field::kSeverityNumber, number);
  AppendBytes(bytes_, log_field::kSeverityText, View(otel_api::logs::SeverityNumToText[number]));
}

void LogEncoder::SetBody(const otel_api::common::AttributeValue& body) noexcept {
  const AnyValue value = nostd::visit(ToAnyValue(), body);
  if (!value.known()) return;
  // A message within a message is written after its size.
  AppendHead(bytes_, log_field::kBody, value.Size());
  value.AppendTo(bytes_);
}

void LogEncoder::SetAttribute(otel_api::nostd::string_view key,
                              const otel_api::common::AttributeValue& value) noexcept {
  AppendKeyValue(bytes_, log_field::kAttributes, View(key), nostd::visit(ToAnyValue(), value));
}

void LogEncoder::SetTraceId(const otel_api::trace::TraceId& id) noexcept {
  if (id.IsValid()) AppendId(bytes_, log_field::kTraceId, id);
}

void LogEncoder::SetSpanId(const otel_api::trace::SpanId& id) noexcept {
  if (id.IsValid()) AppendId(bytes_, log_field::kSpanId, id);
}

void LogEncoder::SetTraceFlags(const otel_api::trace::TraceFlags& flags) noexcept {
  AppendFixed32(bytes_, log_field::kFlags, flags.flags());
}

}  // namespace tensorcast::otel::sdk
