// The telemetry of a process: on from InitTelemetry until the returned object is destroyed. For mains; once
// per process.
//
//   TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(config, "daemon"));
//
// Instrumented code never waits for an exporter. What cannot be sent is dropped and counted (tc_telemetry_*);
// the log gets one warning for each outage of the collector.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "otel/sdk/counters.h"
#include "otel/sdk/options.h"

namespace tensorcast::otel {

// Thread-safe. This base class is telemetry that is off: it does nothing.
class Telemetry {
 public:
  // Shuts down.
  virtual ~Telemetry() = default;

  virtual bool enabled() const { return false; }
  // Exports what is queued now. False when that takes longer than `timeout`; it then goes on.
  virtual bool Flush(absl::Duration /*timeout*/) { return true; }
  // Flushes within observability.otel.shutdown_timeout, then ends, whatever the collector does. An export
  // that is stuck for longer is left to a thread that ends with the process. Idempotent.
  virtual void Shutdown() {}
  // When the collector does not accept what is sent: what to check, which setting to change, and the last
  // error. "" while nothing failed.
  virtual std::string Advice() const { return ""; }
  const sdk::Counters& counters() const { return *counters_; }

 protected:
  std::shared_ptr<const sdk::Counters> counters_ = std::make_shared<sdk::Counters>();
};

// `role`: "global-store", "daemon", "client". `resource`: further attributes of this process; a server sets a
// service.instance.id that outlives restarts, so that its series continue. INVALID_ARGUMENT names the key
// that is wrong; FAILED_PRECONDITION when telemetry is already on.
absl::StatusOr<std::unique_ptr<Telemetry>> InitTelemetry(const v1::OtelConfig& config, std::string_view role,
                                                         const ResourceAttributes& resource = {});

}  // namespace tensorcast::otel
