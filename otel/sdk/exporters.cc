#include "otel/sdk/exporters.h"

#include <iostream>
#include <string>
#include <utility>

#include "opentelemetry/exporters/ostream/log_record_exporter_factory.h"
#include "opentelemetry/exporters/ostream/metric_exporter_factory.h"
#include "opentelemetry/exporters/ostream/span_exporter_factory.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_metric_exporter_factory.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_metric_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_metric_exporter_factory.h"
#include "opentelemetry/exporters/otlp/otlp_http_metric_exporter_options.h"
#include "opentelemetry/sdk/logs/recordable.h"
#include "opentelemetry/sdk/metrics/instruments.h"
#include "opentelemetry/sdk/trace/recordable.h"
#include "otel/sdk/otlp_exporters.h"

namespace tensorcast::otel::sdk {
namespace {

namespace otlp = opentelemetry::exporter::otlp;

void AddHeaders(const BridgeOptions& options, otlp::OtlpHeaders& headers) {
  for (const auto& [key, value] : options.headers) {
    headers.erase(key);  // above those of OTEL_EXPORTER_OTLP_HEADERS
    headers.emplace(key, value);
  }
}

// The SDK's options start from OTEL_*; what is configured stands above it.
template <class Options>
Options GrpcOptions(const BridgeOptions& options) {
  Options grpc;
  if (!options.endpoint.empty()) {
    grpc.endpoint = options.endpoint;
    grpc.use_ssl_credentials = options.endpoint.starts_with("https://");
  }
  if (!options.ca_file.empty()) grpc.ssl_credentials_cacert_path = options.ca_file;
  if (options.timeout.count() > 0) grpc.timeout = options.timeout;
  if (!options.compression.empty()) grpc.compression = options.compression;
  AddHeaders(options, grpc.metadata);
  return grpc;
}

template <class Options>
Options HttpOptions(const BridgeOptions& options, const std::string& path) {
  Options http;
  if (!options.endpoint.empty()) {
    http.url = options.endpoint;
    while (http.url.ends_with('/')) http.url.pop_back();
    http.url += path;
  }
  http.content_type = otlp::HttpRequestContentType::kBinary;
  if (!options.ca_file.empty()) http.ssl_ca_cert_path = options.ca_file;
  if (!options.cert_file.empty()) http.ssl_client_cert_path = options.cert_file;
  if (!options.key_file.empty()) http.ssl_client_key_path = options.key_file;
  if (options.insecure_skip_verify) http.ssl_insecure_skip_verify = true;
  if (options.timeout.count() > 0) http.timeout = options.timeout;
  if (!options.compression.empty()) http.compression = options.compression;
  AddHeaders(options, http.http_headers);
  return http;
}

Exporters MakeGrpc(const BridgeOptions& options) {
  return {.spans = NewSpanExporter(GrpcOptions<otlp::OtlpGrpcExporterOptions>(options)),
          .metrics = otlp::OtlpGrpcMetricExporterFactory::Create(
              GrpcOptions<otlp::OtlpGrpcMetricExporterOptions>(options)),
          .logs = NewLogExporter(GrpcOptions<otlp::OtlpGrpcLogRecordExporterOptions>(options))};
}

Exporters MakeHttp(const BridgeOptions& options) {
  return {.spans = NewSpanExporter(HttpOptions<otlp::OtlpHttpExporterOptions>(options, "/v1/traces")),
          .metrics = otlp::OtlpHttpMetricExporterFactory::Create(
              HttpOptions<otlp::OtlpHttpMetricExporterOptions>(options, "/v1/metrics")),
          .logs = NewLogExporter(HttpOptions<otlp::OtlpHttpLogRecordExporterOptions>(options, "/v1/logs"))};
}

// On stderr: stdout belongs to the commands' results.
Exporters MakeConsole() {
  return {.spans = opentelemetry::exporter::trace::OStreamSpanExporterFactory::Create(std::cerr),
          .metrics = opentelemetry::exporter::metrics::OStreamMetricExporterFactory::Create(std::cerr),
          .logs = opentelemetry::exporter::logs::OStreamLogRecordExporterFactory::Create(std::cerr)};
}

Exporters MakeAll(const BridgeOptions& options, ExporterKind kind) {
  switch (kind) {
    case ExporterKind::kOtlpGrpc:
      return MakeGrpc(options);
    case ExporterKind::kOtlpHttp:
      return MakeHttp(options);
    case ExporterKind::kConsole:
      return MakeConsole();
  }
  return {};
}

}  // namespace

Exporters MakeExporters(const BridgeOptions& options) {
  Exporters exporters = MakeAll(options, options.exporter);
  Exporters console = MakeConsole();
  if (options.ExporterOf(Signal::kTraces) == ExporterKind::kConsole) {
    exporters.spans = std::move(console.spans);
  }
  if (options.ExporterOf(Signal::kMetrics) == ExporterKind::kConsole) {
    exporters.metrics = std::move(console.metrics);
  }
  if (options.ExporterOf(Signal::kLogs) == ExporterKind::kConsole) exporters.logs = std::move(console.logs);
  if (!options.traces) exporters.spans = nullptr;
  if (!options.metrics) exporters.metrics = nullptr;
  if (!options.logs) exporters.logs = nullptr;
  return exporters;
}

}  // namespace tensorcast::otel::sdk
