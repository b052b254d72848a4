// How the rates of two links affect a transfer between them. Nodes of a fleet may have different rates: then
// the fast ones should get the image at their own rate, and pass it on to each other first.
//
// Rates are in Mbit/s. An unknown rate does not affect a choice. Within a host no rate does.
//
// Pure functions. Thread-safe.
#pragma once

#include <cstdint>

#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

// The rate in the node's label, else the rate of its recent transfers; 0: not known.
uint64_t RateOf(const LaneEnd& end);

// Whether the source has less than half of the receiver's rate. Such a source also fills slowly, so it has
// little to give. At each look the receiver may exchange up to kMaxSlowLinks of them for others.
bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source);
inline constexpr uint32_t kMaxSlowLinks = 4;

// A source that is much faster than the receiver is left to faster receivers: the cost is 1, and 2 if the
// source has the whole image, since every chunk comes from such a source first. Otherwise 0.
uint64_t CostOfFasterLink(const LaneEnd& receiver, const SourceCandidate& source);

// How many of the kSlotParts parts of an upload slot the receiver takes: a slot is a share of the source's
// link, which a slow receiver cannot use up. At least a quarter.
inline constexpr uint32_t kSlotParts = 20;
uint32_t SlotPartsOf(const LaneEnd& receiver, const LaneEnd& source);

}  // namespace tensorcast::global_store
