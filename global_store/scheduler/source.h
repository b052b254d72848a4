// What the scheduler is shown: the receiver, what it asks for, and the replicas that may be its sources.
// Plain values.
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

// The labels of a node that say where it is.
inline constexpr char kRackLabel[] = "rack";
inline constexpr char kZoneLabel[] = "zone";
// And how fast its link to other hosts is each way, in Mbit/s.
inline constexpr char kLinkLabel[] = "link_mbit";

// What the scheduler needs to know of a node.
struct LaneEnd {
  std::string host_id;        // empty: shares a host with no node
  std::string handle_socket;  // empty: no local lane
  std::vector<std::string> lanes;
  bool has_devices = false;  // can open another process's GPU memory
  std::string rack;          // empty: unknown. Racks of two zones may have one name
  std::string zone;
  uint64_t link_mbit = 0;      // as the label says; 0: unknown
  uint64_t measured_mbit = 0;  // as its transfers went lately; 0: unknown
};

struct SourceCandidate {
  std::string_view replica_id;
  const LaneEnd* end = nullptr;
  LocationKind place = LocationKind::kCpu;
  bool filling = false;
  bool rooted = true;    // is, or has sources that lead to, a node that can make the bytes
  bool partial = false;  // gives what it has, and no transfer brings the rest
  bool slow = false;     // this receiver gave it up before
  bool draining = false;
  bool overtaken = false;      // lately: a receiver had nothing of it in time
  uint32_t uploads = 0;        // grants of the node, for this artifact: they take its slots
  uint32_t active_grants = 0;  // of the node, for all artifacts: they share its links
  uint64_t tie = 0;
};

// What a receiver does about sources in other zones. A thin link may join two zones, and the image should
// cross it once: one node of a zone pulls from other zones, and the other nodes of the zone pull from it.
enum class ZoneRole : uint8_t {
  kFree,    // the receiver has no zone, or already pulls from another zone
  kPuller,  // no other node of its zone has the image or pulls it from another zone
  kServed,  // another node of its zone has the image, or pulls it from another zone
};

struct SourceQuery {
  const LaneEnd* receiver = nullptr;
  LocationKind destination = LocationKind::kCpu;
  std::string_view required_lane;              // empty: any
  uint32_t upload_slots = 7;                   // of a node, for each artifact
  std::span<const std::string> filling_lanes;  // what a replica that fills serves over
  uint32_t wanted = 1;                         // sources, at most
  uint32_t wanted_slow = 1;                    // of those, with a slow link, at most
  bool has_source = false;                     // already, and not only partial replicas
  bool stalls = false;                         // it calls all of them slow
  bool has_source_on_host = false;             // already, on its own host
  ZoneRole zone_role = ZoneRole::kFree;
};

// Whether the zones differ. A node without a zone label is in no zone.
bool IsAcrossZones(const LaneEnd& a, const LaneEnd& b);

// Of the same host, where both say on which they are.
bool SameHost(const LaneEnd& a, const LaneEnd& b);

}  // namespace tensorcast::global_store
