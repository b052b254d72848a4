// A transfer's report as text: totals, a bar chart of its stages on one time axis, how busy each was, what
// was given up, and what bounds it. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// What the report itself does not say.
struct Beyond {
  bool under_way = false;  // this is its report so far
  std::vector<SourceDetails> sources;
  Route route;
};

// `bar_width` is the chart's, in characters; at least 10.
std::string ExplainTransfer(const TransferReport& report, const Beyond& beyond = {}, int bar_width = 50);

}  // namespace tensorcast::explain
