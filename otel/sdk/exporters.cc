#include "otel/sdk/exporters.h"

#include <iostream>
#include <utility>

#include "opentelemetry/exporters/ostream/log_record_exporter_factory.h"
#include "opentelemetry/exporters/ostream/metric_exporter_factory.h"
#include "opentelemetry/exporters/ostream/span_exporter_factory.h"
#include "opentelemetry/sdk/logs/recordable.h"
#include "opentelemetry/sdk/metrics/instruments.h"
#include "opentelemetry/sdk/trace/recordable.h"

namespace tensorcast::otel::sdk {
namespace {

// On stderr: stdout belongs to the commands' results.
Exporters MakeConsole() {
  return {.spans = opentelemetry::exporter::trace::OStreamSpanExporterFactory::Create(std::cerr),
          .metrics = opentelemetry::exporter::metrics::OStreamMetricExporterFactory::Create(std::cerr),
          .logs = opentelemetry::exporter::logs::OStreamLogRecordExporterFactory::Create(std::cerr)};
}

Exporters MakeAll(const BridgeOptions& options) {
  switch (options.exporter) {
    case ExporterKind::kOtlpGrpc:
      return MakeGrpcExporters(options);
    case ExporterKind::kOtlpHttp:
      return MakeHttpExporters(options);
    case ExporterKind::kConsole:
      return MakeConsole();
  }
  return {};
}

}  // namespace

// All exporters are made; those of signals that are off, or go to the console, are replaced.
Exporters MakeExporters(const BridgeOptions& options) {
  Exporters exporters = MakeAll(options);
  // A signal may go to the console while the others go to a collector.
  Exporters console = MakeConsole();
  const auto choose = [&](Signal signal, bool wanted, auto Exporters::* exporter) {
    if (options.ExporterOf(signal) == ExporterKind::kConsole) {
      exporters.*exporter = std::move(console.*exporter);
    }
    if (!wanted) exporters.*exporter = nullptr;
  };
  choose(Signal::kTraces, options.traces, &Exporters::spans);
  choose(Signal::kMetrics, options.metrics, &Exporters::metrics);
  choose(Signal::kLogs, options.logs, &Exporters::logs);
  return exporters;
}

// What all signals of this process are labelled with.
opentelemetry::sdk::resource::Resource MakeResource(const BridgeOptions& options) {
  opentelemetry::sdk::resource::ResourceAttributes attributes;
  for (const auto& [key, value] : options.resource) attributes.SetAttribute(key, value);
  return opentelemetry::sdk::resource::Resource::Create(attributes);
}

}  // namespace tensorcast::otel::sdk
