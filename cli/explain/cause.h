// Why the fetching of a transfer took its time, from what both of its ends recorded (base/wall_time.h). Pure
// functions; any report will do, also of nodes that lie.
//
// Each end knows its own side only. A cause counts for the time that the transfer would not have taken
// without it, the other causes being as they are: a source that was stopped for a share f of its time would
// otherwise have sent bytes x f / (1 - f) more. What neither end accounts for passed between them. Where the
// two contradict each other, or the source that gave most tells nothing, the cause is "unknown".
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

struct Cause {
  // "stopped", "no cpu", "limiter", "cores", "buffers": at one node. "reading", "other receivers": at a
  // source. "network": between a source and this node. "memory", "disk", "object store": of a source that is
  // not a node. "unknown". Empty: nothing was recorded.
  std::string name;
  std::string grant_id;  // of the source that it is at, or behind; empty: this node itself
  double share = 0;      // of the transfer's wall time, 0 to 1
  std::string why;       // sentences for people: the evidence, then what would help
};

// The cause with the largest share of `total`, the transfer's wall time; `moving`: the part of it in which a
// stage was at work. `stage`: the one that bounds the transfer; other causes than a node that could not run
// are found for kFetch alone.
Cause FindCause(const TransferReport& report, absl::Duration total, absl::Duration moving, Stage stage,
                const std::vector<SourceDetails>& details);

}  // namespace tensorcast::explain
