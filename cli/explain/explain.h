// A transfer's report as text: totals, a bar chart of its stages on one time axis, how busy each was, which
// sources were given up, and what bounds the transfer. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// Facts beyond the report.
struct Beyond {
  bool under_way = false;  // the transfer runs; this is its report so far
  std::vector<SourceDetails> sources;
  Route route;
};

// `bar_width` is the chart's width in characters; at least 10.
std::string ExplainTransfer(const TransferReport& report, const Beyond& beyond = {}, int bar_width = 50);

// The same for programs:
// {"bound": {"part", "cause", "share", "why"}, "seconds": {"total", "queue", "start", "moving", "starved",
// "gaps", "finish"},
//  "stages": [{"stage", "lane", "source", "busy_share", "at_once"}],
//  "sources": [{"source", "lane", "mapped", "known", "bytes", "requests", "reading_share", "problem"}],
//  "bounding_hop": {"from", "to", "lane", "part", "cause", "why", "silent", "steps"} or null,
//  "hops": [{"node", "replica", "known", "under_way", "bytes_per_second", "problem"}]}
std::string AnalysisJson(const TransferReport& report, const std::vector<SourceDetails>& sources = {},
                         const Route& route = {});

}  // namespace tensorcast::explain
