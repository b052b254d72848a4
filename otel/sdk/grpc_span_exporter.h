// Sends spans that encoded themselves to an OTLP collector over gRPC, by the options of the SDK's own
// exporter. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/exporters/otlp/otlp_grpc_exporter_options.h"
#include "opentelemetry/sdk/trace/exporter.h"

namespace tensorcast::otel::sdk {

// As thread-safe as the SDK's: one export at a time.
std::unique_ptr<opentelemetry::sdk::trace::SpanExporter> MakeGrpcSpanExporter(
    const opentelemetry::exporter::otlp::OtlpGrpcExporterOptions& options);

}  // namespace tensorcast::otel::sdk
