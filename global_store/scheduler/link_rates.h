// How the rates of two links affect a transfer between them. Nodes of a fleet may have different rates. Then
// fast nodes should get the image at their own rate, and pass it on to each other first.
//
// Rates are in Mbit/s. An unknown rate does not affect a choice. Within a host, rates do not affect a choice.
//
// Pure functions. Thread-safe.
#pragma once

#include <cstdint>

#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

// The rate in the node's label, else the rate of its recent transfers; 0: not known.
uint64_t RateOf(const LaneEnd& end);

// Whether the source has less than half of the receiver's rate. Such a source also fills slowly, so it has
// few chunks to give. Each time that a receiver asks for more sources, it may exchange up to kMaxSlowLinks
// such sources for others.
bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source);
inline constexpr uint32_t kMaxSlowLinks = 4;

// The cost of a source that is much faster than the receiver; faster receivers should use such a source. The
// cost is 2 if the source has the whole image, since every chunk first comes from such a source, and 1 if it
// does not. 0 for other sources.
uint64_t CostOfFasterLink(const LaneEnd& receiver, const SourceCandidate& source);

// How many of the kSlotParts parts of an upload slot the receiver takes; at least a quarter of them. A slot
// is a share of the source's link, and a slow receiver cannot use a whole share.
inline constexpr uint32_t kSlotParts = 20;
uint32_t SlotPartsOf(const LaneEnd& receiver, const LaneEnd& source);

}  // namespace tensorcast::global_store
