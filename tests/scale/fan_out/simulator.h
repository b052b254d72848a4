// One image or several, from few nodes to many, simulated: the real directory and scheduler hand out the
// grants, each receiver runs the real chunk picker, and a virtual network and clock carry what they decide.
// What is modelled of the rest: a request and a chunk take a link's latency; a pull is one flow that sends
// what was asked for in that order; a committed chunk is announced at once, but at most every 10 ms; the
// global store answers one call after another, each after the time of an RPC and of its work. A receiver
// watches its sources as the daemon does: it asks for others where they bring nothing, tries one that failed
// three times, after pauses, and tells the store which were overtaken.
//
// Deterministic: the same plan gives the same run. Thread-compatible.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/replica/replica.h"

namespace tensorcast::fan_out {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// Times are seconds since the beginning, rates bytes a second.
struct NodePlan {
  double arrives = 0;  // asks for the images; those that have them from the beginning never do
  bool has_images = false;
  double part = 1;  // of the chunks that it then has, at random: below 1 nothing brings the rest
  LocationKind place = LocationKind::kCpu;  // of what it then has
  double place_rate = 0;                    // at which it gives that, to all together; 0: no limit
  bool is_object_store = false;  // gives the images like a node, which no store knows: as their shared origin
  double rate = 0;               // of its host's link, each way
  bool says_rate = true;         // knows it, as by its network card
  int host = -1;                 // those with the same number share one; -1: it has its own
  double crashes = kNever;
  double stops = kNever;            // answers no call any more, and its connections stay open
  bool crashes_when_given = false;  // once it has given each chunk of every image to a receiver
  int group = -1;                   // nodes behind one uplink, a rack's or a zone's
  bool drains = false;
  std::vector<std::string> lanes = {"tcp"};  // the fastest first
};

struct Plan {
  std::string name;
  std::vector<NodePlan> nodes;
  int images = 1;            // of one size, all wanted by every node
  uint64_t image_bytes = 0;  // of each
  uint64_t chunk_bytes = 0;
  double group_rate = 0;                          // of each group's uplink, each way; 0: no limit
  std::string group_label = "rack";               // by which nodes name their group; empty: they do not
  double host_rate = 0;                           // of what daemons of one host send each other; 0: no limit
  double tcp_rate = 0;                            // of a node over the lane `tcp`, each way; 0: its link's
  LocationKind destination = LocationKind::kCpu;  // GPUs open memory of their host
  std::string without;                            // a rule of global_store/scheduler that is left out
  double store_away_from = kNever;
  double store_away_until = kNever;
  uint64_t seed = 1;

  double latency = 100e-6;       // of a message from node to node
  double rpc = 1e-3;             // of a call, there and back, beside the store's work
  double store_work = 30e-6;     // of a call at the global store, one after another
  double report = 0;             // from a node's first request to its report of its replica; 0: with it
  double connect = 3e-3;         // from a grant to the first request of its pull
  double verify = 500e-6;        // from a chunk's last byte to its announcement
  double have_interval = 10e-3;  // between announcements of one node
  double step = 10e-3;           // between two computations of all shares
  double peer_timeout = 10;      // a receiver that gets nothing for so long has failed
  uint32_t sources = 6;          // of a transfer, at most
  uint32_t upload_slots = 7;     // of a node, for each image
};

// Of one image at one node.
struct ReplicaResult {
  double took =
      kNever;  // from the node's arrival; kNever: it failed, or crashed, or was there from the beginning
  bool failed = false;
  uint32_t requests = 0;  // for grants
  uint64_t received_bytes = 0;
  uint64_t wire_bytes = 0;   // of those: from another host
  uint64_t group_bytes = 0;  // and from another group
  uint64_t given_bytes = 0;
  uint32_t taken_back = 0;  // fetches
  uint32_t refetched = 0;   // chunks that were asked for more than once
};

struct RunResult {
  std::vector<ReplicaResult> replicas;  // node 0's of every image, node 1's...
  double last = 0;                      // when the last receiver had it
  uint64_t store_calls = 0;
  double directory_mean_us = 0;  // of a request for grants, as it took here
  double directory_worst_us = 0;
};

RunResult Simulate(const Plan& plan);

}  // namespace tensorcast::fan_out
