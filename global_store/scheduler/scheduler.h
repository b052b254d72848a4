// Chooses which replicas a receiver pulls from, over which lanes. A pure function: no state, no clock, no
// randomness.
//
// What can be used at all: the receiver and the source share a lane (the required one, if any); a replica
// that fills serves over some lanes only. Of those the best by the rules of source_rules.h, in their order,
// then the smaller replica id, so that equal inputs give equal answers.
//
// A receiver that has no source, or only such as give nothing, gets one, however bad it is: one that
// waits would move no bytes at all. Any further source is good by all of these; but beside one that
// leads to a node that can make the bytes, a partial replica, which leads to no node, is as good as any other
// for what it has. A receiver with a source on its own host that leads to all of it gets none
// elsewhere: the bytes cross the network to each host once.
//
// Thread-safe, as nothing is kept.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "global_store/scheduler/source.h"
#include "global_store/scheduler/source_rules.h"

namespace tensorcast::global_store {

struct SourceChoice {
  size_t candidate = 0;  // its index
  std::string lane;
  friend bool operator==(const SourceChoice&, const SourceChoice&) = default;
};

// The best first; empty when no candidate can be used.
// REQUIRES: at most kSourceRules rules.
std::vector<SourceChoice> ChooseSources(const SourceQuery& query, std::span<const SourceCandidate> candidates,
                                        std::span<const SourceRule> rules = SourceRules());

// Whether they share a lane.
bool CanUse(const SourceQuery& query, const SourceCandidate& candidate);

}  // namespace tensorcast::global_store
