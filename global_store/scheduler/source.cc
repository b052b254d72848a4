#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

bool IsAcrossZones(const LaneEnd& a, const LaneEnd& b) {
  return !a.zone.empty() && !b.zone.empty() && a.zone != b.zone;
}

bool SameHost(const LaneEnd& a, const LaneEnd& b) { return !a.host_id.empty() && a.host_id == b.host_id; }

}  // namespace tensorcast::global_store
