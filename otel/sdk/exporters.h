// Where each signal goes, made from our options. Includes OpenTelemetry.
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

// What all items of this process have in common.
opentelemetry::sdk::resource::Resource MakeResource(const BridgeOptions& options);

// Bridge::Create with exporters of the caller's: the in-memory ones of tests.
std::shared_ptr<Bridge> MakeBridge(const BridgeOptions& options, Exporters exporters);

}  // namespace tensorcast::otel::sdk
