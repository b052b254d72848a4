// Throughput between nodes, out of the reports of transfers that have ended or are under way. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

// What one receiver got from one source over one lane within a window of time.
struct Flow {
  std::string receiver, source, lane;
  uint64_t bytes = 0;      // of a fetch that lies partly in the window: in proportion
  uint32_t transfers = 0;  // that fetched in the window
  absl::Duration moving;   // time in the window that their fetches took, summed
};

// Of the fetches between `from` and `to`, most bytes first. Times are the receiver's clock.
std::vector<Flow> FlowsOf(const std::string& receiver, const std::vector<TransferReport>& reports,
                          SteadyTime from, SteadyTime to);

}  // namespace tensorcast::explain
