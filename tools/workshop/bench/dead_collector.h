// The memory of a process when no collector takes its telemetry.
#pragma once

#include "absl/status/statusor.h"
#include "tools/workshop/bench/bench.h"

namespace tensorcast::bench {

// The growth of this process over a million spans, with a hanging collector and without any, beside the max
// size of the configured queues. This process's telemetry must be off.
absl::StatusOr<Rows> MeasureDeadCollector(const BenchOptions& options);

}  // namespace tensorcast::bench
