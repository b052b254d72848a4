// What the exporters of this process's telemetry say of themselves, for the process's own status: a seam,
// since only mains link the SDK. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tensorcast::otel {

struct ExporterState {
  std::string signal = {};    // "traces", "metrics", "logs"
  std::string endpoint = {};  // "console", or an address; empty: the SDK's own default
  std::string error = {};     // of the last export; empty: it succeeded, or none was tried yet
  uint64_t dropped = 0;       // records, since telemetry began
};

// Of the signals that are on; none while telemetry is off.
std::vector<ExporterState> ExporterStates();

// Called by the SDK when telemetry begins, and with an empty function before it ends: returns once no call of
// the previous function runs any more. `states` must not call back.
void InstallExporterStates(std::function<std::vector<ExporterState>()> states);

}  // namespace tensorcast::otel
