// What explain.h prints, for programs. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// {"bound": {"part", "why"}, "seconds": {"total", "queue", "start", "moving", "starved", "gaps", "finish"},
//  "stages": [{"stage", "lane", "source", "busy_share", "at_once"}],
//  "sources": [{"source", "lane", "mapped", "known", "bytes", "requests", "reading_share", "problem"}],
//  "bounding_hop": {"from", "to", "lane", "part", "why", "steps"} or null,
//  "hops": [{"node", "replica", "known", "under_way", "bytes_per_second", "problem"}]}
std::string AnalysisJson(const TransferReport& report, const std::vector<SourceDetails>& sources = {},
                         const Route& route = {});

}  // namespace tensorcast::explain
