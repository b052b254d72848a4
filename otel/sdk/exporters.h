// Makes the exporters of each signal from BridgeOptions. Includes OpenTelemetry.
//
// The SDK's own exporters send metrics to an OTLP collector. Spans and log records encode themselves
// (otlp_encoders.h), and exporters of this folder send those bytes. So a failed export can be repeated, which
// the SDK's exporters do not allow.
#pragma once

#include <memory>

#include "opentelemetry/sdk/logs/exporter.h"
#include "opentelemetry/sdk/metrics/push_metric_exporter.h"
#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/exporter.h"
#include "otel/sdk/bridge.h"

namespace tensorcast::otel::sdk {

// Each is null if its signal is off.
struct Exporters {
  std::unique_ptr<opentelemetry::sdk::trace::SpanExporter> spans;
  std::unique_ptr<opentelemetry::sdk::metrics::PushMetricExporter> metrics;
  std::unique_ptr<opentelemetry::sdk::logs::LogRecordExporter> logs;
};

Exporters MakeExporters(const BridgeOptions& options);

// The exporters for a collector over gRPC or HTTP (otlp_exporters.cc). Options that BridgeOptions leave unset
// come from the SDK, which reads the environment (OTEL_EXPORTER_OTLP_*). Like the SDK's exporters, each
// allows one export at a time.
Exporters MakeGrpcExporters(const BridgeOptions& options);
Exporters MakeHttpExporters(const BridgeOptions& options);

// The OpenTelemetry resource of all items of this process.
opentelemetry::sdk::resource::Resource MakeResource(const BridgeOptions& options);

// Bridge::Create with the caller's exporters, such as the in-memory ones of tests.
std::shared_ptr<Bridge> MakeBridge(const BridgeOptions& options, Exporters exporters);

}  // namespace tensorcast::otel::sdk
