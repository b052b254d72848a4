// Finds where the time of a transfer went, from its report only. Pure functions. They accept any report, even
// of a transfer that failed before it moved a byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "cli/explain/cause.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// The wall time of a transfer, from the request to the end, split into parts. The parts add up to total().
struct TransferParts {
  SteadyTime begin;  // start of the time axis: when the transfer was queued
  SteadyTime end;
  absl::Duration queue;   // in the queue
  absl::Duration start;   // from the end of the queue to the first byte: waiting for space and a source
  absl::Duration moving;  // the time in which at least one stage worked
  // Idle time between the first chunk and the last: the sources did not have the missing chunks yet.
  absl::Duration starved;
  absl::Duration gaps;    // between stages: searching for another source
  absl::Duration finish;  // after the last stage
  absl::Duration total() const { return end - begin; }
};
TransferParts PartsOf(const TransferReport& report);

// The sum of a stage over all its sources.
struct StageTotal {
  Stage stage = Stage::kFetch;
  uint64_t bytes = 0;
  absl::Duration busy;
  double share = 0;  // of the busy time of all stages; 0 to 1
};
std::vector<StageTotal> TotalsOf(const TransferReport& report);  // in the order fetch, verify, place

// The average number of chunks that were in the stage at the same time: busy time divided by wall time. 0 for
// an empty interval.
double AtOnce(const StageReport& stage);

// The part that limits the speed of the transfer: "queue", "start", "fetch", "verify", "place", "starved",
// "gaps" or "finish"; "nothing" if the transfer took no measurable time.
struct Bound {
  std::string part;
  double share = 0;  // fraction (0 to 1) of the wall time that `cause` took, or `part` if `cause` is empty
  Cause cause;       // why the stage was slow; empty: not recorded
  std::string why;   // sentences for people
};
// `details`: the reports of the sources, for a transfer that is bound by fetching.
Bound FindBound(const TransferReport& report, const std::vector<SourceDetails>& details = {});

// Returns the transfer's bound. For a failed transfer, returns the part "failed", and its progress in `why`.
Bound FindVerdict(const TransferReport& report, const std::vector<SourceDetails>& details = {});

}  // namespace tensorcast::explain
