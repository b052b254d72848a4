// One frame of `tensorcast top`: nodes with their pools, running transfers, sources and receivers, flows
// between nodes, versions of keys on nodes, and the last transfers. Pure functions; cli/commands/top.cc asks
// the nodes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "cli/explain/versions.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::explain {

struct NodeView {
  v1::Node node;                                // from the global store, or from the node itself
  std::optional<v1::GetStatusResponse> status;  // the node's own report
  std::string problem;                          // why there is no status
};

// The progress of a transfer in an earlier frame.
struct Seen {
  uint64_t bytes = 0;
  SteadyTime at;
};

struct TopView {
  SteadyTime now;
  absl::Duration window = absl::Seconds(10);            // throughput is an average over this time
  std::optional<v1::GetClusterStatusResponse> cluster;  // unset: the global store cannot be asked
  std::string problem;                                  // why it cannot be asked
  std::vector<NodeView> nodes;
  std::vector<KeyVersions> keys;  // of the keys with earlier versions, the last bound ones
  // SeenIn(the previous frame), by transfer id and by the grant id of each source. Empty in the first frame.
  std::map<std::string, Seen> before;
};

// Returns the progress that the next frame needs as TopView::before.
std::map<std::string, Seen> SeenIn(const TopView& view);

// The bytes that one receiver got from one source over one lane within a window of time.
struct Flow {
  std::string receiver, source, lane;
  uint64_t bytes = 0;      // a fetch that is partly in the window counts proportionally
  uint32_t transfers = 0;  // number of transfers with fetches in the window
  absl::Duration moving;   // time of their fetches in the window, summed
};

// The flows of the fetches between `from` and `to`, largest first. Times are the receiver's clock.
std::vector<Flow> FlowsOf(const std::string& receiver, const std::vector<TransferReport>& reports,
                          SteadyTime from, SteadyTime to);

struct TopLimits {
  size_t transfers = 10;
  size_t flows = 10;
  size_t running = 10;
  size_t feeds = 20;
  size_t versions = 10;  // nodes per key
};

// The frame as text. Lines end with "\n"; there are no terminal codes.
std::string RenderTop(const TopView& view, const TopLimits& limits = {});

}  // namespace tensorcast::explain
