// The exporters of each signal, made from our options. Includes OpenTelemetry.
//
// The SDK exports metrics to an OTLP collector. Spans and log records encode themselves (otlp_encoders.h),
// and exporters of ours send those bytes: the SDK's exporters consume their items and do not say why a
// collector refused them, so that no item could be sent again (guards.h, export_trouble).
#pragma once

#include <memory>

#include "opentelemetry/sdk/logs/exporter.h"
#include "opentelemetry/sdk/metrics/push_metric_exporter.h"
#include "opentelemetry/sdk/resource/resource.h"
#include "opentelemetry/sdk/trace/exporter.h"
#include "otel/sdk/bridge.h"

namespace tensorcast::otel::sdk {

// Null where the signal is off.
struct Exporters {
  std::unique_ptr<opentelemetry::sdk::trace::SpanExporter> spans;
  std::unique_ptr<opentelemetry::sdk::metrics::PushMetricExporter> metrics;
  std::unique_ptr<opentelemetry::sdk::logs::LogRecordExporter> logs;
};

Exporters MakeExporters(const BridgeOptions& options);

// The exporters for a collector over gRPC or HTTP (otlp_exporters.cc). Options that ours leave unset are the
// SDK's, from the environment (OTEL_EXPORTER_OTLP_*). As thread-safe as the SDK's: one export of a signal at
// a time.
Exporters MakeGrpcExporters(const BridgeOptions& options);
Exporters MakeHttpExporters(const BridgeOptions& options);

// The resource of all items of this process.
opentelemetry::sdk::resource::Resource MakeResource(const BridgeOptions& options);

// Bridge::Create with the caller's exporters, such as the in-memory ones of tests.
std::shared_ptr<Bridge> MakeBridge(const BridgeOptions& options, Exporters exporters);

}  // namespace tensorcast::otel::sdk
