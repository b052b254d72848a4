// The state of this process's telemetry exporters, for the status that this process reports. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tensorcast::otel {

struct ExporterState {
  std::string signal = {};    // "traces", "metrics", "logs"
  std::string endpoint = {};  // "console", or an address; empty: the SDK's own default
  std::string error = {};     // of the last export; empty: the export succeeded, or there was none yet
  uint64_t dropped = 0;       // records dropped since telemetry began
};

// The exporters of the signals that are on; none while telemetry is off.
std::vector<ExporterState> ExporterStates();

// The SDK calls this when telemetry begins, and with an empty function before telemetry ends. Waits for
// running calls of the previous function. `states` must not call functions of this header.
void InstallExporterStates(std::function<std::vector<ExporterState>()> states);

}  // namespace tensorcast::otel
