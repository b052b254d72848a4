// Exporters that send to an OTLP collector, over gRPC or HTTP. Their options are ours and, where those say
// nothing, the SDK's, which are those of the environment (OTEL_EXPORTER_OTLP_*).
//
// Metrics are exported by the SDK. Spans and log records encode themselves (span_encoder, log_encoder), and
// their exporters here send those bytes: the SDK's take what they export apart, and do not tell why a
// collector refused it, so that nothing could be sent again (guards.h, export_trouble). Includes
// OpenTelemetry.
#pragma once

#include "otel/sdk/bridge.h"
#include "otel/sdk/exporters.h"

namespace tensorcast::otel::sdk {

// As thread-safe as the SDK's: one export of a signal at a time.
Exporters MakeGrpcExporters(const BridgeOptions& options);
Exporters MakeHttpExporters(const BridgeOptions& options);

}  // namespace tensorcast::otel::sdk
