// The checks that concern several nodes or the global store. Pure functions.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// What the global store says of a node: draining, unreachable, not listed. It drops a silent one from its
// list.
void CheckListing(const NodeFacts& node, FindingList& out);
// Which nodes answered this program. A node that does not, but that other nodes reach, is not a failure: the
// user's machine need not reach every node.
void CheckAnswers(const Facts& facts, FindingList& out);
// Which nodes reach which, in both directions.
void CheckReachability(const Facts& facts, FindingList& out);
// That software and protocol are the same everywhere.
void CheckVersions(const Facts& facts, FindingList& out);
void CheckGlobalStore(const Facts& facts, FindingList& out);

}  // namespace tensorcast::doctor
