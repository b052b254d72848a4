// Every lane that a daemon may have, in one list: the configuration, the command line and the daemon take the
// names, and what a lane permits, from here. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/lane.h"

namespace tensorcast::transport {

// Fastest first. (The loopback transport of tests is none of them.)
const std::vector<Lane>& Lanes();

// Null when there is none of this name.
const Lane* FindLane(std::string_view name);

// The names of those that are transports, and of all, fastest first.
std::vector<std::string> TransportLaneNames();
std::vector<std::string> LaneNames();
// The names of those that serve a replica while it fills, fastest first.
std::vector<std::string> FillingLaneNames();

// True when a grant of the lane `granted` also permits a pull over `wanted`: a lane that opens the whole pool
// to the receiver covers those that do not.
bool LaneCovers(std::string_view granted, std::string_view wanted);

}  // namespace tensorcast::transport
