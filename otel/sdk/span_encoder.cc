#include "otel/sdk/span_encoder.h"

#include <array>

#include "opentelemetry/sdk/common/attribute_utils.h"
#include "opentelemetry/sdk/instrumentationscope/instrumentation_scope.h"
#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/trace/span_context.h"
#include "opentelemetry/trace/span_metadata.h"
#include "opentelemetry/trace/trace_state.h"
#include "otel/sdk/otlp_wire.h"

namespace tensorcast::otel::sdk {
namespace {

namespace nostd = opentelemetry::nostd;
using opentelemetry::common::AttributeValue;
using opentelemetry::sdk::common::OwnedAttributeValue;

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
  kEvents = 11,
  kLinks = 13,
  kStatus = 15,
  kFlags = 16
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
namespace key_value_field {
enum : uint32_t { kKey = 1, kValue };
}
namespace any_value_field {
enum : uint32_t { kString = 1, kBool, kInt, kDouble };
}
namespace resource_field {
enum : uint32_t { kAttributes = 1 };
}
namespace scope_field {
enum : uint32_t { kName = 1, kVersion };
}

std::string_view View(nostd::string_view text) { return {text.data(), text.size()}; }

// A value that OTLP has no scalar for is left out; ours are all scalars.
struct AnyValue {
  uint32_t field = 0;
  uint64_t number = 0;  // of a bool, an integer, or a double's bits
  std::string_view text;

  bool known() const { return field != 0; }
  size_t Size() const {
    switch (field) {
      case any_value_field::kString:
        return wire::FieldSize(text.size());
      case any_value_field::kDouble:
        return 9;
      default:
        return 1 + wire::VarintSize(number);
    }
  }
  template <class String>
  void AppendTo(String& out) const {
    if (field == any_value_field::kString) {
      wire::AppendBytes(out, field, text);
    } else if (field == any_value_field::kDouble) {
      wire::AppendFixed64(out, field, number);
    } else {
      wire::AppendUint(out, field, number);
    }
  }
};

// Of both of the SDK's variants, that of views and that of owned values.
struct ToAnyValue {
  AnyValue operator()(bool value) const { return {any_value_field::kBool, value ? 1u : 0u, {}}; }
  AnyValue operator()(int32_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(uint32_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(int64_t value) const {
    return {any_value_field::kInt, static_cast<uint64_t>(value), {}};
  }
  AnyValue operator()(uint64_t value) const { return (*this)(static_cast<int64_t>(value)); }
  AnyValue operator()(double value) const {
    return {any_value_field::kDouble, std::bit_cast<uint64_t>(value), {}};
  }
  AnyValue operator()(const char* value) const { return {any_value_field::kString, 0, value}; }
  AnyValue operator()(nostd::string_view value) const { return {any_value_field::kString, 0, View(value)}; }
  AnyValue operator()(const std::string& value) const { return {any_value_field::kString, 0, value}; }
  template <class Other>
  AnyValue operator()(const Other&) const {
    return {};
  }
};

size_t KeyValueSize(std::string_view key, const AnyValue& value) {
  return wire::FieldSize(key.size()) + wire::FieldSize(value.Size());
}

template <class String>
void AppendKeyValue(String& out, uint32_t field, std::string_view key, const AnyValue& value) {
  if (!value.known()) return;
  wire::AppendHead(out, field, KeyValueSize(key, value));
  wire::AppendBytes(out, key_value_field::kKey, key);
  wire::AppendHead(out, key_value_field::kValue, value.Size());
  value.AppendTo(out);
}

template <class String>
void AppendAttributes(String& out, uint32_t field,
                      const opentelemetry::common::KeyValueIterable& attributes) {
  attributes.ForEachKeyValue([&](nostd::string_view key, const AttributeValue& value) noexcept {
    AppendKeyValue(out, field, View(key), nostd::visit(ToAnyValue(), value));
    return true;
  });
}

template <class String, class Id>
void AppendId(String& out, uint32_t field, const Id& id) {
  const auto bytes = id.Id();
  wire::AppendBytes(out, field, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

template <class String>
void AppendTraceState(String& out, uint32_t field, const opentelemetry::trace::SpanContext& context) {
  const auto& state = context.trace_state();
  if (state != nullptr && !state->Empty()) wire::AppendBytes(out, field, state->ToHeader());
}

}  // namespace

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
  wire::AppendFixed64(event, event_field::kTime, time.time_since_epoch().count());
  wire::AppendBytes(event, event_field::kName, View(name));
  AppendAttributes(event, event_field::kAttributes, attributes);
  wire::AppendBytes(bytes_, span_field::kEvents, event);
}

void SpanEncoder::AddLink(const otel_api::trace::SpanContext& context,
                          const otel_api::common::KeyValueIterable& attributes) noexcept {
  std::string link;
  AppendId(link, link_field::kTraceId, context.trace_id());
  AppendId(link, link_field::kSpanId, context.span_id());
  AppendTraceState(link, link_field::kTraceState, context);
  AppendAttributes(link, link_field::kAttributes, attributes);
  wire::AppendBytes(bytes_, span_field::kLinks, link);
}

void SpanEncoder::SetStatus(otel_api::trace::StatusCode code, otel_api::nostd::string_view why) noexcept {
  std::string status;
  // OTLP's numbers are the SDK's. A message belongs to errors only.
  wire::AppendUint(status, status_field::kCode, static_cast<uint64_t>(code));
  if (code == otel_api::trace::StatusCode::kError)
    wire::AppendBytes(status, status_field::kMessage, View(why));
  wire::AppendBytes(bytes_, span_field::kStatus, status);
}

void SpanEncoder::SetName(otel_api::nostd::string_view name) noexcept {
  wire::AppendBytes(bytes_, span_field::kName, View(name));  // of several the last counts
}

void SpanEncoder::SetTraceFlags(otel_api::trace::TraceFlags flags) noexcept {
  wire::AppendFixed32(bytes_, span_field::kFlags, flags.flags());
}

void SpanEncoder::SetSpanKind(otel_api::trace::SpanKind kind) noexcept {
  // OTLP begins with one that is unspecified.
  wire::AppendUint(bytes_, span_field::kKind, static_cast<uint64_t>(kind) + 1);
}

void SpanEncoder::SetStartTime(otel_api::common::SystemTimestamp time) noexcept {
  start_ = time.time_since_epoch();
  wire::AppendFixed64(bytes_, span_field::kStart, start_.count());
}

void SpanEncoder::SetDuration(std::chrono::nanoseconds duration) noexcept {
  wire::AppendFixed64(bytes_, span_field::kEnd, (start_ + duration).count());
}

void SpanEncoder::SetResource(const otel_api::sdk::resource::Resource& resource) noexcept {
  resource_ = &resource;
}

void SpanEncoder::SetInstrumentationScope(
    const otel_api::sdk::instrumentationscope::InstrumentationScope& scope) noexcept {
  scope_ = &scope;
}

std::string EncodeResource(const otel_api::sdk::resource::Resource& resource) {
  std::string bytes;
  for (const auto& [key, value] : resource.GetAttributes()) {
    AppendKeyValue(bytes, resource_field::kAttributes, key, nostd::visit(ToAnyValue(), value));
  }
  return bytes;
}

std::string EncodeScope(const otel_api::sdk::instrumentationscope::InstrumentationScope& scope) {
  std::string bytes;
  wire::AppendBytes(bytes, scope_field::kName, scope.GetName());
  wire::AppendBytes(bytes, scope_field::kVersion, scope.GetVersion());
  return bytes;
}

}  // namespace tensorcast::otel::sdk
