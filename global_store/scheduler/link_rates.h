// What the rates of two links mean for a transfer between them. Nodes of a fleet may differ in rate: then the
// fast ones should get the image at their own rate, and pass it on to each other first.
//
// A rate is in Mbit/s. A rate that is not known makes no difference to a choice. Within a host none does.
//
// Pure functions. Thread-safe.
#pragma once

#include <cstdint>

#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

// As the node's label says, else as its transfers went lately; 0: not known.
uint64_t RateOf(const LaneEnd& end);

// Whether the source has less than half of the receiver's rate. It fills as slowly as it sends, so it has
// little to give. Each time that a receiver looks, it is given others in the place of up to so many.
bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source);
inline constexpr uint32_t kMaxSlowLinks = 4;

// A source that is much faster than the receiver is left to faster receivers: 1, and 2 where it has the whole
// image, since every chunk comes from such a source first. Else 0.
uint64_t CostOfFasterLink(const LaneEnd& receiver, const SourceCandidate& source);

// The part of an upload slot of the source that the receiver takes: a slot is a share of the source's link,
// which a slow receiver cannot use up. A quarter at least.
inline constexpr uint32_t kSlotParts = 20;
uint32_t SlotPartsOf(const LaneEnd& receiver, const LaneEnd& source);

}  // namespace tensorcast::global_store
