// The route of a transfer's bytes through the nodes, and the hop that limits the transfer. This hop is the
// receiver itself, the link to a source, or a hop to a source that was still being filled.
//
// Pure functions. They accept any answer, even of malicious nodes. They never compare the clocks of two
// nodes.
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
  std::optional<TransferReport> transfer;  // the transfer that made the replica; nullopt: unknown or none
  bool under_way = false;
  std::vector<v1::ServeReport> servings;
  v1::Limits limits;
  std::string problem;  // why the report is missing; else empty
};

struct Route {
  std::vector<Hop> hops;  // the receiver comes first; empty: no daemon was asked
  std::string left_out;   // text for people: the daemons that were not asked
};

Route RouteOf(const v1::ExplainTransferResponse& response);

// The reports of the transfer's sources, or why the reports are missing. `report`: a transfer to a node of
// `route`.
std::vector<SourceDetails> DetailsOf(const Route& route, const TransferReport& report);

// Bytes per second, from the search for sources to the last byte; 0 if this time is 0.
double RateOf(const TransferReport& report);

struct BoundingHop {
  std::string from;  // the hop is the link from this node to `to`; empty: the hop is the node `to` itself
  std::string to;
  std::string lane;
  std::string part;        // Bound::part of the transfer to `to`
  std::string cause = {};  // the name of Bound::cause
  std::string why;         // further facts for people; may be empty
  // A source that was being filled and sent no report, so one of the sources behind it may be the limit.
  // Empty: no such source.
  std::string silent;
  // One line per node, from the receiver up the route: its rate, and the node that it read from.
  std::vector<std::string> steps;
};
// nullopt: the transfer had no source on another node, or failed.
std::optional<BoundingHop> FindBoundingHop(const Route& route);

// The text of the steps and the hop; empty if FindBoundingHop returns nullopt.
std::string RouteText(const Route& route);

// For a failed transfer: the nodes on its route that failed to fetch, and the nodes that did not answer.
std::string FailuresText(const Route& route);

}  // namespace tensorcast::explain
