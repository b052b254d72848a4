#include "global_store/scheduler/link_rates.h"

#include <algorithm>

namespace tensorcast::global_store {
namespace {

bool AreKnown(const LaneEnd& receiver, const LaneEnd& source) {
  return RateOf(receiver) > 0 && RateOf(source) > 0 && !SameHost(receiver, source);
}

}  // namespace

uint64_t RateOf(const LaneEnd& end) { return end.link_mbit > 0 ? end.link_mbit : end.measured_mbit; }

bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source) {
  return AreKnown(receiver, source) && RateOf(source) * 2 < RateOf(receiver);
}

// A source is much faster with more than one and a half times the receiver's rate.
uint64_t CostOfFasterLink(const LaneEnd& receiver, const SourceCandidate& source) {
  if (!AreKnown(receiver, *source.end) || RateOf(*source.end) * 2 <= RateOf(receiver) * 3) return 0;
  return source.filling ? 1 : 2;
}

uint32_t SlotPartsOf(const LaneEnd& receiver, const LaneEnd& source) {
  if (!AreKnown(receiver, source)) return kSlotParts;
  const uint64_t parts = RateOf(receiver) * kSlotParts / RateOf(source);
  return static_cast<uint32_t>(std::clamp<uint64_t>(parts, kSlotParts / 4, kSlotParts));
}

}  // namespace tensorcast::global_store
