// Why the fetching of a transfer took its time, from the records of both ends (base/wall_time.h). Pure
// functions; they accept any report, also of malicious nodes.
//
// Each end only knows its own side. A cause counts for the time that the transfer would have saved without
// it, with the other causes unchanged: a source that was stopped for a share f of its time would otherwise
// have sent bytes x f / (1 - f) more. Time that neither end accounts for passed between them. If the two
// contradict each other, or the source that gave the most bytes has no report, the cause is "unknown".
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

struct Cause {
  // "stopped", "no cpu", "limiter", "cores", "buffers", "space": at one node. "reading", "other receivers":
  // at a source. "network": between a source and this node. "memory", "disk", "object store": of a source
  // that is not a node. "unknown". Empty: nothing was recorded.
  std::string name;
  std::string grant_id;  // of the source that has or hides the cause; empty: this node
  double share = 0;      // of the transfer's wall time, 0 to 1
  std::string why;       // sentences for people: the evidence, then what would help
};

// The cause with the largest share of `total`, the transfer's wall time; `moving`: the part of it in which a
// stage worked. `stage`: the stage that bounds the transfer; for stages other than kFetch, only causes that
// kept a node from running are found.
Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details);

// Why the time before the first byte, `start` of `total`, was long. Empty: nothing was recorded that took the
// most of it.
Cause CauseOfStart(const TransferReport& report, absl::Duration total, absl::Duration start);

}  // namespace tensorcast::explain
