// Simulates the distribution of one or several images from few nodes to many. The real directory and
// scheduler give the grants, each receiver runs the real chunk picker, and a virtual network and clock carry
// out their decisions. The model of the rest: a request and a chunk take a link's latency; a pull is one flow
// that sends what was requested, in that order; a committed chunk is announced at once, but at most every 10
// ms; the global store answers one call after another, each after the time of an RPC and of its work. A
// receiver watches its sources as the daemon does: it requests others when they bring nothing, tries a failed
// one three times, after pauses, and tells the store which were overtaken.
//
// Deterministic: equal plans give equal runs. Thread-compatible.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/replica/replica.h"

namespace tensorcast::fan_out {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// Times are in seconds since the beginning, rates in bytes per second.
struct NodePlan {
  double arrives = 0;  // when it requests the images; not used with has_images
  bool has_images = false;
  double part = 1;  // random share of the chunks that it has; below 1 no transfer brings the rest
  LocationKind place = LocationKind::kCpu;  // where it has them
  double place_rate = 0;                    // max rate at which it gives them, over all receivers; 0: no
                                            // limit
  bool is_object_store = false;  // gives the images like a node, but as a shared origin that is not
                                 // registered
  double rate = 0;               // of its host's link, each way
  bool says_rate = true;         // reports its rate, as if from its network card
  int host = -1;                 // nodes with equal numbers share a host; -1: a host of its own
  double crashes = kNever;
  double stops = kNever;            // no longer answers calls, and its connections stay open
  bool crashes_when_given = false;  // crashes once it has given each chunk of every image to a receiver
  int group = -1;                   // nodes behind one uplink, of a rack or a zone
  bool drains = false;
  std::vector<std::string> lanes = {"tcp"};  // fastest first
};

struct Plan {
  std::string name;
  std::vector<NodePlan> nodes;
  int images = 1;            // of equal size; every node wants all of them
  uint64_t image_bytes = 0;  // of each image
  uint64_t chunk_bytes = 0;
  double group_rate = 0;                          // of each group's uplink, each way; 0: no limit
  std::string group_label = "rack";               // label with which nodes name their group; empty: they do
                                                  // not
  double host_rate = 0;                           // for bytes between daemons of one host; 0: no limit
  double tcp_rate = 0;                            // of a node over the lane `tcp`, each way; 0: that of its
                                                  // link
  LocationKind destination = LocationKind::kCpu;  // GPUs can open the memory of GPUs on their host
  std::string without;                            // a rule of global_store/scheduler to leave out
  double store_away_from = kNever;
  double store_away_until = kNever;
  uint64_t seed = 1;

  double latency = 100e-6;       // of a message between nodes
  double rpc = 1e-3;             // of a call, both ways, without the store's work
  double store_work = 30e-6;     // for a call at the global store, one after another
  double report = 0;             // from a node's first request to the report of its replica; 0: with the
                                 // request
  double connect = 3e-3;         // from a grant to the first request of its pull
  double verify = 500e-6;        // from a chunk's last byte to its announcement
  double have_interval = 10e-3;  // between announcements of one node
  double step = 10e-3;           // between two computations of all shares
  double peer_timeout = 10;      // a receiver without bytes for this long has failed
  uint32_t sources = 6;          // max number per transfer
  uint32_t upload_slots = 7;     // of a node, per image
};

// One image at one node.
struct ReplicaResult {
  double took =
      kNever;  // from the node's arrival; kNever: it failed, crashed, or had the image from the beginning
  bool failed = false;
  uint32_t requests = 0;  // for grants
  uint64_t received_bytes = 0;
  uint64_t wire_bytes = 0;   // the part from other hosts
  uint64_t group_bytes = 0;  // the part from other groups
  uint64_t given_bytes = 0;
  uint32_t taken_back = 0;  // fetches
  uint32_t refetched = 0;   // chunks that were requested more than once
};

struct RunResult {
  std::vector<ReplicaResult> replicas;  // node 0's of every image, node 1's, ...
  double last = 0;                      // when the last receiver was done
  uint64_t store_calls = 0;
  double directory_mean_us = 0;  // real time of a request for grants
  double directory_worst_us = 0;
};

RunResult Simulate(const Plan& plan);

}  // namespace tensorcast::fan_out
