// The telemetry of a process. It is on from InitTelemetry until the returned object is destroyed. For `main`
// functions; one object at a time.
//
//   TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(config, "daemon"));
//
// Instrumented code never waits for an exporter. Items that cannot be sent are dropped and counted
// (tc_telemetry_*). The log gets one warning for each outage of the collector.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "otel/sdk/counters.h"
#include "otel/sdk/options.h"

namespace tensorcast::otel {

// Thread-safe. This base class stands for telemetry that is off: it does nothing.
class Telemetry {
 public:
  // Shuts down.
  virtual ~Telemetry() = default;

  virtual bool enabled() const { return false; }
  // Exports the items that are queued now. False if that fails or takes longer than `timeout`. After the
  // timeout, the export continues.
  virtual bool Flush(absl::Duration /*timeout*/) { return true; }
  // Flushes within observability.otel.shutdown_timeout, then turns telemetry off, whatever the collector
  // does. An export that is stuck for longer stays on a thread that ends with the process. Idempotent.
  virtual void Shutdown() {}
  // Advice for people when the collector does not accept exports: what to check, which setting to change, and
  // the last error. "" if nothing failed.
  virtual std::string Advice() const { return ""; }
  const sdk::Counters& counters() const { return *counters_; }

 protected:
  std::shared_ptr<const sdk::Counters> counters_ = std::make_shared<sdk::Counters>();
};

// `role`: "global-store", "daemon", "client". `resource`: further attributes of this process; a server sets a
// service.instance.id that outlives restarts, so that its series continue. INVALID_ARGUMENT names the wrong
// key or variable; FAILED_PRECONDITION when telemetry is already on.
absl::StatusOr<std::unique_ptr<Telemetry>> InitTelemetry(const v1::OtelConfig& config, std::string_view role,
                                                         const ResourceAttributes& resource = {});

}  // namespace tensorcast::otel
