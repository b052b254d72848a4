// What a process holds when no collector takes its telemetry.
#pragma once

#include "absl/status/statusor.h"
#include "tools/workshop/bench/bench.h"

namespace tensorcast::bench {

// The growth of this process over a million spans, with a collector that hangs and with none at all, beside
// what the configured queues can hold. Telemetry of this process must be off.
absl::StatusOr<Rows> MeasureDeadCollector(const BenchOptions& options);

}  // namespace tensorcast::bench
