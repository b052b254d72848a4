// Checks of several nodes or the global store. Pure functions.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// Checks the global store's view of a node: draining, unreachable, not listed. The store removes a silent
// node from its list.
void CheckListing(const NodeFacts& node, FindingList& out);
// Checks which nodes answered this program. A node that does not answer, but that other nodes reach, is not a
// failure: the user's machine need not reach every node.
void CheckAnswers(const Facts& facts, FindingList& out);
// Checks which nodes reach which, in both directions.
void CheckReachability(const Facts& facts, FindingList& out);
// Checks that software and protocol versions are equal everywhere.
void CheckVersions(const Facts& facts, FindingList& out);
void CheckGlobalStore(const Facts& facts, FindingList& out);

}  // namespace tensorcast::doctor
