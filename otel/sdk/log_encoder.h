// A log record that is written in OTLP's own bytes while it is made. The SDK's exporter takes its records
// apart when it exports them, so that they cannot be sent a second time to a collector that was not there the
// first time; these bytes can. Includes OpenTelemetry.
#pragma once

#include <string>
#include <string_view>

#include "opentelemetry/sdk/logs/recordable.h"

namespace tensorcast::otel::sdk {

// Owned and written by one thread at a time, as the SDK's recordables are.
class LogEncoder final : public opentelemetry::sdk::logs::Recordable {
 public:
  // The fields of an opentelemetry.proto.logs.v1.LogRecord.
  std::string_view bytes() const { return bytes_; }

  void SetTimestamp(opentelemetry::common::SystemTimestamp time) noexcept override;
  void SetObservedTimestamp(opentelemetry::common::SystemTimestamp time) noexcept override;
  void SetSeverity(opentelemetry::logs::Severity severity) noexcept override;
  void SetBody(const opentelemetry::common::AttributeValue& body) noexcept override;
  void SetAttribute(opentelemetry::nostd::string_view key,
                    const opentelemetry::common::AttributeValue& value) noexcept override;
  void SetEventId(int64_t, opentelemetry::nostd::string_view) noexcept override {}  // ours have none
  void SetTraceId(const opentelemetry::trace::TraceId& id) noexcept override;
  void SetSpanId(const opentelemetry::trace::SpanId& id) noexcept override;
  void SetTraceFlags(const opentelemetry::trace::TraceFlags& flags) noexcept override;
  // All records of a process have one resource and one scope, which the exporter writes.
  void SetResource(const opentelemetry::sdk::resource::Resource&) noexcept override {}
  void SetInstrumentationScope(
      const opentelemetry::sdk::instrumentationscope::InstrumentationScope&) noexcept override {}

 private:
  std::string bytes_;
};

}  // namespace tensorcast::otel::sdk
