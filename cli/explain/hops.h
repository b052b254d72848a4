// The route of a transfer's bytes, and the hop that limits the transfer. This hop is the receiver itself, the
// link to one of its sources, or a hop further up the route, if a source was itself being filled.
//
// The clocks of two nodes are never compared. Hops are compared by their rates, and by the time in which they
// had nothing to request. Pure functions. They accept any answer, even of malicious nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/explain/analysis.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

// One node on the route.
struct Hop {
  std::string node;
  std::string replica_id;
  std::optional<TransferReport> transfer;  // the one that made the replica; nullopt: unknown or none
  bool under_way = false;
  std::vector<v1::ServeReport> servings;
  v1::Limits limits;
  std::string problem;  // why it has no report
};

struct Route {
  std::vector<Hop> hops;  // the receiver comes first; empty: no daemon was asked
  std::string left_out;   // text for people: the daemons that were not asked
};

Route RouteOf(const v1::ExplainTransferResponse& response);

// The reports of the sources of a transfer to a node of the route, or why they are missing.
std::vector<SourceDetails> DetailsOf(const Route& route, const TransferReport& report);

// Bytes per second, over the time from the search for sources to the last byte; 0: there was no such time.
double RateOf(const TransferReport& report);

struct BoundingHop {
  std::string from;  // the hop is the link from here to `to`; empty: the hop is `to` itself
  std::string to;
  std::string lane;
  std::string part;        // Bound::part of the transfer to `to`
  std::string cause = {};  // the name of Bound::cause
  std::string why;         // further facts for people; may be empty
  // A source that was being filled but sent no report: its own sources may be the limit. Empty: none.
  std::string silent;
  // One line per node, from the receiver up the route: its rate, and the node that it read from.
  std::vector<std::string> steps;
};
// nullopt: the transfer had no source on another node, or failed.
std::optional<BoundingHop> FindBoundingHop(const Route& route);

// The text of the steps and the hop; empty if FindBoundingHop finds none.
std::string RouteText(const Route& route);

// For a failed transfer: the nodes on its route that failed themselves, and those that did not answer.
std::string FailuresText(const Route& route);

}  // namespace tensorcast::explain
