// Finds why the fetching of a transfer was slow, from the records of the receiver and the sources
// (base/wall_time.h). Pure functions. They accept any report, even of malicious nodes.
//
// The weight of a cause is the time that the transfer would have saved without this cause. Time that neither
// the receiver nor the source accounts for was spent in the network. The cause is "unknown" if their records
// contradict each other, or if the source with the most bytes has no report.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "cli/explain/named_cause.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// Finds the cause with the largest share of `total`, the transfer's wall time. `moving`: the time in which a
// stage worked. `stage`: the stage that bounds the transfer. For other stages than kFetch, finds only causes
// that kept a node from running.
Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details);

// Finds why `start`, the time before the first byte, was long. `total`: the transfer's wall time. Returns
// an empty cause unless a recorded cause took at least half of `start`.
Cause CauseOfStart(const TransferReport& report, absl::Duration total, absl::Duration start);

}  // namespace tensorcast::explain
