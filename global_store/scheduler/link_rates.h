// Defines how the link rates of source and receiver affect the choice of sources. Fast nodes should get the
// image first, at their own rate.
//
// Rates are in Mbit/s. Unknown rates, and rates within a host, do not affect a choice.
//
// Pure functions. Thread-safe.
#pragma once

#include <cstdint>

#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

// The rate in the node's label, else the rate of its recent transfers; 0: not known.
uint64_t RateOf(const LaneEnd& end);

// Whether the source has less than half of the receiver's rate. At each request for more sources, a receiver
// may exchange up to kMaxSlowLinks such sources for other sources.
bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source);
inline constexpr uint32_t kMaxSlowLinks = 4;

// The cost of a source with more than 1.5 times the receiver's rate, because faster receivers should use that
// source: 2 for a whole replica, 1 for a filling replica. Other sources cost 0.
uint64_t CostOfFasterLink(const LaneEnd& receiver, const SourceCandidate& source);

// How many of an upload slot's kSlotParts parts the receiver takes; at least a quarter of them. A slow
// receiver cannot use a whole slot of a fast source.
inline constexpr uint32_t kSlotParts = 20;
uint32_t SlotPartsOf(const LaneEnd& receiver, const LaneEnd& source);

}  // namespace tensorcast::global_store
