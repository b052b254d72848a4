// The way that a transfer's bytes took, and which hop of it bounds the transfer: this node itself, the link
// to one of its sources, or something further up, where a source was itself only being filled.
//
// Nothing here compares clocks of two nodes: a hop is told from the next by how fast each moved, and by how
// long it had nothing to ask for. Pure functions; any answer will do, also of nodes that lie.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/explain/analysis.h"
#include "cli/explain/source_details.h"
#include "core/replica/transfer_report.h"
#include "proto/daemon.pb.h"

namespace tensorcast::explain {

// One node of the way.
struct Hop {
  std::string node;
  std::string replica_id;
  std::optional<TransferReport> transfer;  // that made the replica there; nullopt: not known, or it was none
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

// What the sources of a transfer to a node of the route say of it, or why they say nothing.
std::vector<SourceDetails> DetailsOf(const Route& route, const TransferReport& report);

// Bytes a second while it was looking for sources and moving; 0: it never was.
double RateOf(const TransferReport& report);

struct BoundingHop {
  std::string from;  // its link to `to` is the hop; empty: `to` itself
  std::string to;
  std::string lane;
  std::string part;        // as in Bound, of the transfer to `to`
  std::string cause = {};  // as in Bound
  std::string why;         // what else is known of it, for people; may be empty
  // It was being filled itself and tells nothing of that: what filled it may be the limit. Empty: none was.
  std::string silent;
  // From the receiver up, a line a node: how fast it moved, and from which node.
  std::vector<std::string> steps;
};
// nullopt: the transfer had no source on another node, or failed.
std::optional<BoundingHop> FindBoundingHop(const Route& route);

// The steps, then the hop; empty for none, and for a transfer that failed.
std::string RouteText(const Route& route);

// Of a transfer that failed: which of those that fed it failed themselves, and which did not answer.
std::string FailuresText(const Route& route);

}  // namespace tensorcast::explain
