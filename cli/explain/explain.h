// Shows a transfer's report as text: totals, a bar chart of its stages on one time axis, how busy each stage
// was, the sources that were given up, and the bound of the transfer. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// Facts that are not in the report.
struct Beyond {
  bool under_way = false;  // the transfer is still running; the report ends now
  std::vector<SourceDetails> sources;
  Route route;
};

// `bar_width` is the chart's width in characters; at least 10.
std::string ExplainTransfer(const TransferReport& report, const Beyond& beyond = {}, int bar_width = 50);

// The same facts for programs, as JSON:
// {"bound": {"part", "cause", "share", "why"},
//  "seconds": {"total", "queue", "start", "moving", "starved", "gaps", "finish"},
//  "stages": [{"stage", "lane", "source", "busy_share", "at_once"}],
//  "sources": [{"source", "lane", "mapped", "known", "bytes", "requests", "reading_share", "problem"}],
//  "bounding_hop": {"from", "to", "lane", "part", "cause", "why", "silent", "steps"} or null,
//  "hops": [{"node", "replica", "known", "under_way", "bytes_per_second", "problem"}]}
std::string AnalysisJson(const TransferReport& report, const std::vector<SourceDetails>& sources = {},
                         const Route& route = {});

}  // namespace tensorcast::explain
