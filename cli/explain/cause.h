// Finds why the fetching of a transfer was slow, from the records of both ends (base/wall_time.h). Pure
// functions. They accept any report, even of malicious nodes.
//
// Each end only knows its own side. The weight of a cause is the time that the transfer would have saved
// without it, with the other causes unchanged. For example, a source that was stopped for a share f of its
// time would otherwise have sent bytes x f / (1 - f) more. Time that neither end accounts for was spent
// between them. If the two ends contradict each other, or the source with the most bytes has no report, the
// cause is "unknown".
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "cli/explain/named_cause.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// The cause with the largest share of `total`, the transfer's wall time; `moving`: the part of `total` in
// which a stage worked. `stage`: the stage that bounds the transfer; for stages other than kFetch, only
// causes that kept a node from running are found.
Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details);

// Why the time before the first byte was long: `start`, a part of `total`. An empty cause: no recorded cause
// took the largest part of `start`.
Cause CauseOfStart(const TransferReport& report, absl::Duration total, absl::Duration start);

}  // namespace tensorcast::explain
