// Where each signal goes, made from our options. Includes OpenTelemetry.
//
// To an OTLP collector metrics are exported by the SDK. Spans and log records encode themselves
// (otlp_encoders.h), and their exporters here send those bytes: the SDK's take what they export apart, and do
// not tell why a collector refused it, so that nothing could be sent again (guards.h, export_trouble).
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

// Its parts, to a collector over gRPC or HTTP (otlp_exporters.cc). Their options are ours and, where those
// say nothing, the SDK's, which are those of the environment (OTEL_EXPORTER_OTLP_*). As thread-safe as the
// SDK's: one export of a signal at a time.
Exporters MakeGrpcExporters(const BridgeOptions& options);
Exporters MakeHttpExporters(const BridgeOptions& options);

// What all items of this process have in common.
opentelemetry::sdk::resource::Resource MakeResource(const BridgeOptions& options);

// Bridge::Create with exporters of the caller's: the in-memory ones of tests.
std::shared_ptr<Bridge> MakeBridge(const BridgeOptions& options, Exporters exporters);

}  // namespace tensorcast::otel::sdk
