// The scheduler's input: the receiver, its request, and the replicas that may be its sources. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/replica/replica.h"

namespace tensorcast::global_store {

inline constexpr char kLocalLane[] = "local";

// The labels of a node's place.
inline constexpr char kRackLabel[] = "rack";
inline constexpr char kZoneLabel[] = "zone";
// The label with the rate of a node's link to other hosts, per direction, in Mbit/s.
inline constexpr char kLinkLabel[] = "link_mbit";

// The facts about a node that the scheduler uses.
struct LaneEnd {
  std::string host_id;        // empty: shares no host with another node
  std::string handle_socket;  // empty: no local lane
  std::vector<std::string> lanes;
  bool has_devices = false;  // can open another process's GPU memory
  std::string rack;          // empty: unknown. Racks of two zones may have the same name
  std::string zone;
  uint64_t link_mbit = 0;      // from the label; 0: unknown
  uint64_t measured_mbit = 0;  // from recent transfers; 0: unknown
};

struct SourceCandidate {
  std::string_view replica_id;
  const LaneEnd* end = nullptr;
  LocationKind place = LocationKind::kCpu;
  bool filling = false;
  bool rooted = true;    // its node can make the bytes, or has sources that lead to such a node
  bool partial = false;  // serves its chunks; no transfer brings more chunks
  bool slow = false;     // this receiver gave up this source before
  bool draining = false;
  bool overtaken = false;      // a receiver recently got nothing from this source in time
  uint32_t uploads = 0;        // the node's grants for this artifact, which take its slots
  uint32_t active_grants = 0;  // the node's grants for all artifacts, which share its links
  uint64_t tie = 0;
};

// A receiver's role for sources in other zones. One node of a zone pulls from other zones, and the other
// nodes of the zone pull from that node, because the link between two zones may be slow.
enum class ZoneRole : uint8_t {
  kFree,    // the receiver has no zone, or already pulls from another zone
  kPuller,  // no other node of the zone has the image or pulls from another zone
  kServed,  // another node of the zone has the image or pulls from another zone
};

struct SourceQuery {
  const LaneEnd* receiver = nullptr;
  LocationKind destination = LocationKind::kCpu;
  std::string_view required_lane;              // empty: any
  uint32_t upload_slots = 7;                   // of a node, for each artifact
  std::span<const std::string> filling_lanes;  // lanes over which a filling replica serves
  uint32_t wanted = 1;                         // max number of sources
  uint32_t wanted_slow = 1;                    // max number of sources with a slow link
  bool has_source = false;                     // the receiver has a source that is not partial
  bool stalls = false;                         // the receiver reports that all its sources are slow
  bool has_source_on_host = false;             // the receiver has a source on its own host
  ZoneRole zone_role = ZoneRole::kFree;
};

// Whether the zones differ. False if a node has no zone label.
bool IsAcrossZones(const LaneEnd& a, const LaneEnd& b);

// Whether both are on the same known host.
bool SameHost(const LaneEnd& a, const LaneEnd& b);

}  // namespace tensorcast::global_store
