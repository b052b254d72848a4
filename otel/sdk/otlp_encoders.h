// Spans and log records that encode themselves as OTLP bytes while they are filled. Like any Recordable of
// the SDK, each is used by one thread at a time. Includes OpenTelemetry.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <string_view>

#include "opentelemetry/sdk/logs/recordable.h"
#include "opentelemetry/sdk/trace/recordable.h"

namespace tensorcast::otel::sdk {

namespace otel_api = opentelemetry;

// A span in a single block of memory, unless the span is larger than a usual span of an RPC. The SDK's
// recordable makes about twenty allocations per span.
class SpanEncoder final : public otel_api::sdk::trace::Recordable {
 public:
  SpanEncoder() { bytes_.reserve(kExpectedBytes); }

  // The fields of an opentelemetry.proto.trace.v1.Span.
  std::string_view bytes() const { return bytes_; }

  void SetIdentity(const otel_api::trace::SpanContext& context,
                   otel_api::trace::SpanId parent) noexcept override;
  void SetAttribute(otel_api::nostd::string_view key,
                    const otel_api::common::AttributeValue& value) noexcept override;
  void AddEvent(otel_api::nostd::string_view name, otel_api::common::SystemTimestamp time,
                const otel_api::common::KeyValueIterable& attributes) noexcept override;
  void AddLink(const otel_api::trace::SpanContext& context,
               const otel_api::common::KeyValueIterable& attributes) noexcept override;
  void SetStatus(otel_api::trace::StatusCode code, otel_api::nostd::string_view why) noexcept override;
  void SetName(otel_api::nostd::string_view name) noexcept override;
  void SetTraceFlags(otel_api::trace::TraceFlags flags) noexcept override;
  void SetSpanKind(otel_api::trace::SpanKind kind) noexcept override;
  // All spans of a process have one resource and one scope, which the exporter writes.
  void SetResource(const otel_api::sdk::resource::Resource&) noexcept override {}
  void SetInstrumentationScope(
      const otel_api::sdk::instrumentationscope::InstrumentationScope&) noexcept override {}
  void SetStartTime(otel_api::common::SystemTimestamp time) noexcept override;
  void SetDuration(std::chrono::nanoseconds duration) noexcept override;
  // Sets the numbers of attributes, events and links that the limits dropped. The SDK's interface has no
  // setters for them.
  void SetDropped(uint32_t attributes, uint32_t events, uint32_t links) noexcept;

 private:
  // Enough for a span of an RPC; a longer span also allocates on the heap.
  static constexpr size_t kExpectedBytes = 384;

  std::array<std::byte, kExpectedBytes + 1> own_;
  std::pmr::monotonic_buffer_resource memory_{own_.data(), own_.size()};
  std::pmr::string bytes_{&memory_};
  std::chrono::nanoseconds start_{0};
};

// A log record. Unlike the SDK's records, its bytes can be sent again after a failed export.
class LogEncoder final : public otel_api::sdk::logs::Recordable {
 public:
  // The fields of an opentelemetry.proto.logs.v1.LogRecord.
  std::string_view bytes() const { return bytes_; }

  void SetTimestamp(otel_api::common::SystemTimestamp time) noexcept override;
  void SetObservedTimestamp(otel_api::common::SystemTimestamp time) noexcept override;
  void SetSeverity(otel_api::logs::Severity severity) noexcept override;
  void SetBody(const otel_api::common::AttributeValue& body) noexcept override;
  void SetAttribute(otel_api::nostd::string_view key,
                    const otel_api::common::AttributeValue& value) noexcept override;
  void SetEventId(int64_t, otel_api::nostd::string_view) noexcept override {}  // ours have none
  void SetTraceId(const otel_api::trace::TraceId& id) noexcept override;
  void SetSpanId(const otel_api::trace::SpanId& id) noexcept override;
  void SetTraceFlags(const otel_api::trace::TraceFlags& flags) noexcept override;
  // All records of a process have one resource and one scope, which the exporter writes.
  void SetResource(const otel_api::sdk::resource::Resource&) noexcept override {}
  void SetInstrumentationScope(
      const otel_api::sdk::instrumentationscope::InstrumentationScope&) noexcept override {}

 private:
  std::string bytes_;
};

}  // namespace tensorcast::otel::sdk
