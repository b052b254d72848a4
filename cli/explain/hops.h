// The way of a transfer's bytes, and the hop that bounds the transfer: this node itself, the link to one of
// its sources, or a hop further up, where a source was itself being filled.
//
// No clocks of two nodes are compared: hops are distinguished by how fast each moved, and by how long it had
// nothing to request. Pure functions; they accept any answer, also of malicious nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/explain/analysis.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

// One node on the way.
struct Hop {
  std::string node;
  std::string replica_id;
  std::optional<TransferReport> transfer;  // made the replica there; nullopt: unknown, or none made it
  bool under_way = false;
  std::vector<v1::ServeReport> servings;
  v1::Limits limits;
  std::string problem;  // why it has no report
};

struct Route {
  std::vector<Hop> hops;  // the receiver first; empty: no daemon was asked
  std::string left_out;   // the daemons not asked, for people
};

Route RouteOf(const v1::ExplainTransferResponse& response);

// The reports of the sources of a transfer to a node of the route, or why they are missing.
std::vector<SourceDetails> DetailsOf(const Route& route, const TransferReport& report);

// Bytes per second during its search for sources and its moving; 0: there was no such time.
double RateOf(const TransferReport& report);

struct BoundingHop {
  std::string from;  // its link to `to` is the hop; empty: `to` itself is
  std::string to;
  std::string lane;
  std::string part;        // as in Bound, of the transfer to `to`
  std::string cause = {};  // as in Bound
  std::string why;         // further facts for people; may be empty
  // A source that was being filled itself and does not report on it: its own sources may be the limit. Empty:
  // none.
  std::string silent;
  // One line per node, from the receiver up: how fast it moved, and from which node.
  std::vector<std::string> steps;
};
// nullopt: the transfer had no source on another node, or failed.
std::optional<BoundingHop> FindBoundingHop(const Route& route);

// The steps, then the hop; empty for none, and for a transfer that failed.
std::string RouteText(const Route& route);

// For a failed transfer: which of the nodes that fed it failed themselves, and which did not answer.
std::string FailuresText(const Route& route);

}  // namespace tensorcast::explain
