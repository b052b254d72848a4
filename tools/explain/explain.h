// A transfer's report as text: totals, a bar chart of its stages on one time axis, how busy each was, what
// was given up, and what bounds it. Pure functions.
#pragma once

#include <string>

#include "core/engine/transfer.h"

namespace tensorcast::explain {

// `bar_width` is the chart's, in characters; at least 10.
std::string ExplainTransfer(const TransferReport& report, int bar_width = 50);

}  // namespace tensorcast::explain
