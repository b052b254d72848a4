#include "tensorcast/telemetry.h"

#include <utility>

#include "base/status.h"
#include "otel/sdk/telemetry.h"
#include "proto/config.pb.h"

namespace tensorcast::client {

absl::StatusOr<std::shared_ptr<void>> StartTelemetry(const TelemetryOptions& options) {
  v1::OtelConfig config;
  config.set_enabled(true);
  config.set_service_name(options.service_name);
  config.set_exporter(options.exporter);
  config.set_endpoint(options.endpoint);
  config.mutable_headers()->Assign(options.headers.begin(), options.headers.end());
  TC_ASSIGN_OR_RETURN(std::unique_ptr<otel::Telemetry> telemetry, otel::InitTelemetry(config, "client"));
  return std::shared_ptr<void>(std::move(telemetry));
}

}  // namespace tensorcast::client
