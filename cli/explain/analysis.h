// Where the time of a transfer went, from its report alone. Pure functions; any report will do, also one of a
// transfer that failed before it moved a byte.
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

// The wall time from the request to the end, cut into parts that add up to it.
struct TransferParts {
  SteadyTime begin;  // of the time axis: when it was queued
  SteadyTime end;
  absl::Duration queue;   // until its turn came
  absl::Duration start;   // then, until the first byte: space, and a source to read
  absl::Duration moving;  // at least one stage was at work
  // Between the first chunk and the last, with none under way: no source had one that was missing.
  absl::Duration starved;
  absl::Duration gaps;    // between stages: looking for another source
  absl::Duration finish;  // after the last stage
  absl::Duration total() const { return end - begin; }
};
TransferParts PartsOf(const TransferReport& report);

// A stage over all its sources.
struct StageTotal {
  Stage stage = Stage::kFetch;
  uint64_t bytes = 0;
  absl::Duration busy;
  double share = 0;  // of the busy time of all stages; 0 to 1
};
std::vector<StageTotal> TotalsOf(const TransferReport& report);  // in the order fetch, verify, place

// How many chunks were in the stage at once, on average: busy time over wall time. 0 for an empty interval.
double AtOnce(const StageReport& stage);

// What bounds the transfer: "queue", "start", "fetch", "verify", "place", "starved", "gaps", "finish", or
// "nothing" when it took no time that could be measured.
struct Bound {
  std::string part;
  double share = 0;  // of the wall time: of the cause where there is one, else of the part
  Cause cause;       // why a stage took its time, as far as the ends recorded it
  std::string why;   // sentences for people
};
// `details`: what its sources said, for a transfer that fetching bounds.
Bound FindBound(const TransferReport& report, const std::vector<SourceDetails>& details = {});

// For a transfer that failed the part "failed", and where that was; for any other its bound.
Bound FindVerdict(const TransferReport& report, const std::vector<SourceDetails>& details = {});

}  // namespace tensorcast::explain
