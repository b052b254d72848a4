// The list of all lanes that a daemon may have. The configuration, the command line and the daemon take the
// lanes' names and permissions from it. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/lane.h"

namespace tensorcast::transport {

// All lanes, fastest first. (The loopback transport of tests is not a lane.)
const std::vector<Lane>& Lanes();

// The lane of this name; null if there is none.
const Lane* FindLane(std::string_view name);

// The names of the lanes that are transports, and the names of all lanes, both fastest first.
std::vector<std::string> TransportLaneNames();
std::vector<std::string> LaneNames();
// The names of the lanes that serve a replica while it fills, fastest first.
std::vector<std::string> FillingLaneNames();

// True if a grant for the lane `granted` permits a pull over the lane `wanted`: if both are the same lane, or
// if only `granted` opens the whole pool to the receiver (Lane::opens_pool).
bool LaneCovers(std::string_view granted, std::string_view wanted);

}  // namespace tensorcast::transport
