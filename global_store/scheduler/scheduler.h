// Chooses which replicas a receiver pulls from, over which lanes. A pure function: no state, no clock, no
// randomness.
//
// A source is usable if the receiver and the source share a lane (the required one, if any); a filling
// replica serves only over some lanes. Usable sources are ordered by the rules of source_rules.h, then by
// replica id, so that equal inputs give equal answers.
//
// A receiver without a source, or with sources that deliver nothing, gets one source even if it is bad, since
// waiting would move no bytes at all. Every further source must be good by all rules. There is one exception:
// if the receiver has a source that leads to a node which can make the bytes, then a partial replica counts
// as good for the chunks that it has. A receiver with a source on its own host that leads to all chunks gets
// none on other hosts, so that the bytes cross the network once per host.
// Thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "global_store/scheduler/source.h"
#include "global_store/scheduler/source_rules.h"

namespace tensorcast::global_store {

struct SourceChoice {
  size_t candidate = 0;  // index in `candidates`
  std::string lane;
  friend bool operator==(const SourceChoice&, const SourceChoice&) = default;
};

// The chosen sources, best first; empty when no candidate can be used. REQUIRES: at most kSourceRules rules.
std::vector<SourceChoice> ChooseSources(const SourceQuery& query, std::span<const SourceCandidate> candidates,
                                        std::span<const SourceRule> rules = SourceRules());

// Whether the receiver and the candidate share a usable lane.
bool CanUse(const SourceQuery& query, const SourceCandidate& candidate);

}  // namespace tensorcast::global_store
