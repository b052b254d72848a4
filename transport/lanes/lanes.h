// The list of all lanes. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/lane.h"

namespace tensorcast::transport {

// All lanes, fastest first, without the loopback transport of tests.
const std::vector<Lane>& Lanes();

// The lane of this name; null if there is none.
const Lane* FindLane(std::string_view name);

// The names of the lanes that are transports, and the names of all lanes, both fastest first.
std::vector<std::string> TransportLaneNames();
std::vector<std::string> LaneNames();
// The names of the lanes that serve a replica while it fills, fastest first.
std::vector<std::string> FillingLaneNames();

// True if a grant for the lane `granted` allows a pull over the lane `wanted`: both lanes are the same, or
// `granted` opens the pool and `wanted` does not (Lane::opens_pool).
bool LaneCovers(std::string_view granted, std::string_view wanted);

}  // namespace tensorcast::transport
