// Chooses which replica a receiver pulls from, over which lane. A pure function: no state, no clock, no
// randomness.
//
// What can be used at all: the receiver and the source share a lane (the required one, if any). Of those the
// best by, in this order:
//   1. sources that the receiver did not give up before in this transfer;
//   2. nodes that are not draining (a draining one serves only what nobody else has);
//   3. sources below the soft cap on grants (at or above it they serve only when all others are, too);
//   4. bytes in memory before bytes on a disk;
//   5. the same host, then the earlier lane in the receiver's own list (fastest first);
//   6. the cheaper place: of the kind of the destination over the local lane (a device copy, a memory copy),
//      the CPU over every other lane, where only host memory is registered and a GPU replica is staged
//      through it;
//   7. the source that serves the fewest grants;
//   8. the smaller replica id, so that equal inputs give equal answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/replica/replica.h"

namespace tensorcast::global_store {

inline constexpr char kLocalLane[] = "local";

// What the scheduler needs to know of a node. Borrowed for the call.
struct LaneEnd {
  std::string host_id;        // empty: shares a host with nobody
  std::string handle_socket;  // empty: no local lane
  std::vector<std::string> lanes;
  bool has_devices = false;  // can open another process's GPU memory
};

struct SourceCandidate {
  std::string replica_id;
  LaneEnd end;
  LocationKind place = LocationKind::kCpu;
  bool slow = false;  // this receiver gave it up before
  bool draining = false;
  uint32_t active_grants = 0;  // of the node: its replicas share its links
};

struct SourceQuery {
  LaneEnd receiver;
  LocationKind destination = LocationKind::kCpu;
  std::string required_lane;  // empty: any
  uint32_t soft_grants_per_source = 4;
};

struct SourceChoice {
  size_t candidate = 0;  // its index
  std::string lane;
  friend bool operator==(const SourceChoice&, const SourceChoice&) = default;
};

// nullopt when no candidate can be used.
std::optional<SourceChoice> ChooseSource(const SourceQuery& query,
                                         std::span<const SourceCandidate> candidates);

}  // namespace tensorcast::global_store
