#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {
namespace {

// A link is slow that has less than a quarter of the receiver's rate.
constexpr uint64_t kSlower = 4;

}  // namespace

bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source) {
  return source.link_mbit > 0 && source.link_mbit < receiver.link_mbit / kSlower &&
         !SameHost(receiver, source);
}

bool IsAcrossZones(const LaneEnd& a, const LaneEnd& b) {
  return !a.zone.empty() && !b.zone.empty() && a.zone != b.zone;
}

bool SameHost(const LaneEnd& a, const LaneEnd& b) { return !a.host_id.empty() && a.host_id == b.host_id; }

}  // namespace tensorcast::global_store
