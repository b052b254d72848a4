// Checks of one node, from its daemon's status. Each check adds at least one finding to `out` if it applies
// to the node. Pure functions. REQUIRES: node.status is OK.
#pragma once

#include "absl/time/time.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

void CheckStoreLink(const NodeFacts& node, FindingList& out);
// Compares the node's clock with this host's, and tolerates an error of half the call's round trip.
void CheckClock(const NodeFacts& node, FindingList& out);
void CheckCertificate(const NodeFacts& node, absl::Time now, FindingList& out);
void CheckDescriptors(const NodeFacts& node, FindingList& out);
// Applies to nodes that register memory with RDMA devices or GPUs.
void CheckLockedMemory(const NodeFacts& node, FindingList& out);
void CheckHugePages(const NodeFacts& node, FindingList& out);
void CheckPoolMemory(const NodeFacts& node, FindingList& out);
// Compares the links' rates with daemon.limits.
void CheckLinks(const NodeFacts& node, FindingList& out);
void CheckExporters(const NodeFacts& node, FindingList& out);
void CheckDamage(const NodeFacts& node, FindingList& out);
void CheckDevices(const NodeFacts& node, FindingList& out);
void CheckConservation(const NodeFacts& node, FindingList& out);

// Runs all of these checks.
void CheckNode(const NodeFacts& node, absl::Time now, FindingList& out);

}  // namespace tensorcast::doctor
