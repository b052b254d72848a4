// Chooses which replicas a receiver pulls from, over which lanes. A pure function: no state, no clock, no
// randomness.
//
// A source is usable if it shares a lane with the receiver. If a lane is required, source and receiver must
// share that lane. A filling replica serves only over some lanes. The rules of source_rules.h order usable
// sources; if all rules give equal costs, the replica id decides.
//
// A receiver without a source, or with sources that are all slow, gets one usable source in any case. Each
// further source must be rooted (SourceCandidate::rooted) or partial, must have a free slot, and must not be
// slow or draining; an earlier source must be rooted. If a rooted source is on the receiver's own host, the
// receiver gets no source on another host. Thread-safe.
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
