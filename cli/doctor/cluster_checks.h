// Checks that concern several nodes or the global store. Pure functions, which add to `out`.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// Checks that the global store lists the node, and lists it neither as draining nor as unreachable. The
// global store removes a silent node from its list.
void CheckListing(const NodeFacts& node, FindingList& out);
// Checks that the nodes answered this program. A node that only other nodes reach is not a failure: the
// user's machine need not reach every node.
void CheckAnswers(const Facts& facts, FindingList& out);
// Checks that the nodes reach each other, in both directions.
void CheckReachability(const Facts& facts, FindingList& out);
// Checks that all nodes have the same software and protocol versions.
void CheckVersions(const Facts& facts, FindingList& out);
void CheckGlobalStore(const Facts& facts, FindingList& out);

}  // namespace tensorcast::doctor
