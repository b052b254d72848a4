// Telemetry of a process: on from InitTelemetry to the end of what it returns. For mains, once a process.
//
//   TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(config, "daemon"));
//
// Never in the way: nothing that is instrumented ever waits for an exporter. What cannot be sent is dropped,
// counted (tc_telemetry_*); the log has one warning for each outage of the collector.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "otel/sdk/counters.h"
#include "otel/sdk/options.h"

namespace tensorcast::otel {

// Thread-safe. This class is telemetry that is off: it does nothing.
class Telemetry {
 public:
  // Shuts down.
  virtual ~Telemetry() = default;

  virtual bool enabled() const { return false; }
  // Exports what there is now. False when that was not done in time; it goes on then.
  virtual bool Flush(absl::Duration /*timeout*/) { return true; }
  // Flushes within observability.otel.shutdown_timeout, then ends, whatever the collector does. An export
  // that is stuck beyond that is left to a thread that dies with the process. Idempotent.
  virtual void Shutdown() {}
  // What to look at, and which setting to change, when the collector does not take what is sent, with the
  // last error. "" while nothing failed.
  virtual std::string Advice() const { return ""; }
  const sdk::Counters& counters() const { return *counters_; }

 protected:
  std::shared_ptr<const sdk::Counters> counters_ = std::make_shared<sdk::Counters>();
};

// `role`: "global-store", "daemon", "client". `resource`: what else describes this process; a server names
// itself here by a service.instance.id that outlives restarts, so that its series go on. INVALID_ARGUMENT
// names the key that is wrong; FAILED_PRECONDITION when telemetry is on already.
absl::StatusOr<std::unique_ptr<Telemetry>> InitTelemetry(const v1::OtelConfig& config, std::string_view role,
                                                         const ResourceAttributes& resource = {});

}  // namespace tensorcast::otel
