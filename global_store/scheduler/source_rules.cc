#include "global_store/scheduler/source_rules.h"

#include "global_store/scheduler/link_rates.h"

namespace tensorcast::global_store {
namespace {

// For a replica on a GPU an attached GPU copy needs no way through the host. Over a lane only host memory is
// registered: it is served as it is, while a GPU replica is staged through it.
uint64_t PlaceCost(const UsableSource& usable) {
  const bool wants_gpu = usable.lane_rank == 0 && usable.query.destination == LocationKind::kGpu;
  return (usable.source.place == LocationKind::kGpu) == wants_gpu ? 0 : 1;
}

// 0: in its rack, 1: in its zone, 2: elsewhere, or not known.
uint64_t Distance(const UsableSource& usable) {
  const LaneEnd& a = *usable.query.receiver;
  const LaneEnd& b = *usable.source.end;
  if (a.zone != b.zone) return 2;
  if (!a.rack.empty() && a.rack == b.rack) return 0;
  return a.zone.empty() ? 2 : 1;
}

// Of many replicas that fill and join at one moment each would else hang on the last one to come: for a
// receiver's first source any of those that fill.
uint64_t Load(const UsableSource& usable) {
  return usable.source.filling && !usable.query.has_source ? 0 : usable.source.active_grants;
}

// Beside a source that leads to the rest, what a partial replica on the receiver's host has need not cross
// the network.
bool IsPartAtHand(const UsableSource& usable) {
  return usable.source.partial && usable.query.has_source &&
         SameHost(*usable.query.receiver, *usable.source.end);
}

using Usable = UsableSource;

constexpr SourceRule kRules[kSourceRules] = {
    // The receiver did not give it up before in this transfer.
    {"not_given_up", [](const Usable& u) -> uint64_t { return u.source.slow; }},
    // It is, or leads to, a node that can make the bytes.
    {"rooted", [](const Usable& u) -> uint64_t { return !u.source.rooted && !IsPartAtHand(u); }},
    // Replicas in the puller's own zone wait for what the puller brings.
    {"across_for_puller",
     [](const Usable& u) -> uint64_t {
       return u.query.zone_role == ZoneRole::kPuller && !IsAcrossZones(*u.query.receiver, *u.source.end);
     }},
    // A draining node serves only what no other node has.
    {"not_draining", [](const Usable& u) -> uint64_t { return u.source.draining; }},
    // As far as the rates of both are known.
    {"fast_link", [](const Usable& u) -> uint64_t { return HasSlowLink(*u.query.receiver, *u.source.end); }},
    {"leave_faster_links",
     [](const Usable& u) -> uint64_t { return CostOfFasterLink(*u.query.receiver, u.source); }},
    // Each artifact has its own slots of a node.
    {"free_slot", [](const Usable& u) -> uint64_t { return u.source.uploads >= u.query.upload_slots; }},
    {"not_overtaken", [](const Usable& u) -> uint64_t { return u.source.overtaken; }},
    {"memory_before_disk", [](const Usable& u) -> uint64_t { return u.source.place == LocationKind::kDisk; }},
    {"same_host", [](const Usable& u) -> uint64_t { return !SameHost(*u.query.receiver, *u.source.end); }},
    {"faster_lane", [](const Usable& u) -> uint64_t { return u.lane_rank; }},
    {"nearer", Distance},
    {"ready_before_filling", [](const Usable& u) -> uint64_t { return u.source.filling; }},
    {"cheaper_place", PlaceCost},
    {"less_loaded", Load},
    {"tie", [](const Usable& u) -> uint64_t { return u.source.tie; }},
};

}  // namespace

std::span<const SourceRule, kSourceRules> SourceRules() { return kRules; }

}  // namespace tensorcast::global_store
