#include "otel/sdk/log_encoder.h"

#include "opentelemetry/logs/severity.h"
#include "opentelemetry/trace/span_id.h"
#include "opentelemetry/trace/trace_flags.h"
#include "opentelemetry/trace/trace_id.h"
#include "otel/sdk/otlp_attributes.h"
#include "otel/sdk/protobuf_writer.h"

namespace tensorcast::otel::sdk {
namespace {

// Field numbers of opentelemetry-proto 1.x.
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

}  // namespace

void LogEncoder::SetTimestamp(opentelemetry::common::SystemTimestamp time) noexcept {
  protobuf::AppendFixed64(bytes_, kTime, time.time_since_epoch().count());
}

void LogEncoder::SetObservedTimestamp(opentelemetry::common::SystemTimestamp time) noexcept {
  protobuf::AppendFixed64(bytes_, kObservedTime, time.time_since_epoch().count());
}

void LogEncoder::SetSeverity(opentelemetry::logs::Severity severity) noexcept {
  // OTLP's numbers are the SDK's.
  const auto number = static_cast<size_t>(severity);
  protobuf::AppendUint(bytes_, kSeverityNumber, number);
  protobuf::AppendBytes(bytes_, kSeverityText,
                        protobuf::View(opentelemetry::logs::SeverityNumToText[number]));
}

void LogEncoder::SetBody(const opentelemetry::common::AttributeValue& body) noexcept {
  const protobuf::AnyValue value = opentelemetry::nostd::visit(protobuf::ToAnyValue(), body);
  if (!value.known()) return;
  protobuf::AppendHead(bytes_, kBody, value.Size());
  value.AppendTo(bytes_);
}

void LogEncoder::SetAttribute(opentelemetry::nostd::string_view key,
                              const opentelemetry::common::AttributeValue& value) noexcept {
  protobuf::AppendKeyValue(bytes_, kAttributes, protobuf::View(key),
                           opentelemetry::nostd::visit(protobuf::ToAnyValue(), value));
}

void LogEncoder::SetTraceId(const opentelemetry::trace::TraceId& id) noexcept {
  if (id.IsValid()) protobuf::AppendId(bytes_, kTraceId, id);
}

void LogEncoder::SetSpanId(const opentelemetry::trace::SpanId& id) noexcept {
  if (id.IsValid()) protobuf::AppendId(bytes_, kSpanId, id);
}

void LogEncoder::SetTraceFlags(const opentelemetry::trace::TraceFlags& flags) noexcept {
  protobuf::AppendFixed32(bytes_, kFlags, flags.flags());
}

}  // namespace tensorcast::otel::sdk
