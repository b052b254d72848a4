// What explain.h prints, for programs. Pure functions.
#pragma once

#include <string>

#include "core/engine/transfer.h"

namespace tensorcast::explain {

// {"bound": {"part", "why"}, "seconds": {"total", "queue", "start", "moving", "gaps", "finish"},
//  "stages": [{"stage", "lane", "source", "busy_share", "at_once"}]}
std::string AnalysisJson(const TransferReport& report);

}  // namespace tensorcast::explain
