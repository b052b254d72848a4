// Sends spans and log records that encoded themselves to an OTLP collector, over gRPC or HTTP, by the options
// of the SDK's own exporters. Those take what they export apart, and do not tell why a collector refused it,
// so that nothing could be sent again; these do (guards.h, export_trouble). Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/exporters/otlp/otlp_grpc_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_grpc_log_record_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_exporter_options.h"
#include "opentelemetry/exporters/otlp/otlp_http_log_record_exporter_options.h"
#include "opentelemetry/sdk/logs/exporter.h"
#include "opentelemetry/sdk/trace/exporter.h"

namespace tensorcast::otel::sdk {

// As thread-safe as the SDK's: one export at a time.
std::unique_ptr<opentelemetry::sdk::trace::SpanExporter> NewSpanExporter(
    const opentelemetry::exporter::otlp::OtlpGrpcExporterOptions& options);
std::unique_ptr<opentelemetry::sdk::trace::SpanExporter> NewSpanExporter(
    const opentelemetry::exporter::otlp::OtlpHttpExporterOptions& options);
std::unique_ptr<opentelemetry::sdk::logs::LogRecordExporter> NewLogExporter(
    const opentelemetry::exporter::otlp::OtlpGrpcLogRecordExporterOptions& options);
std::unique_ptr<opentelemetry::sdk::logs::LogRecordExporter> NewLogExporter(
    const opentelemetry::exporter::otlp::OtlpHttpLogRecordExporterOptions& options);

}  // namespace tensorcast::otel::sdk
