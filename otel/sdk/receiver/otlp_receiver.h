// A receiver of OTLP over gRPC in this process, which keeps the received telemetry. `tensorcast otel-smoke`
// checks that telemetry, and `tensorcast bench collector` counts it. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "otel/sdk/receiver/export_call.h"
#include "otel/sdk/receiver/received_telemetry.h"

namespace tensorcast::otel {

class OtlpReceiver : public ReceivedTelemetry {
 public:
  // Listens on a port of this host's loopback. UNAVAILABLE if no port can be opened.
  static absl::StatusOr<std::unique_ptr<OtlpReceiver>> Start(Keep keep = Keep::kAll);

  const std::string& endpoint() const { return server_->endpoint(); }  // http://host:port

 private:
  using ReceivedTelemetry::ReceivedTelemetry;

  std::unique_ptr<ExportServer> server_;  // its calls fill the base class
};

}  // namespace tensorcast::otel
