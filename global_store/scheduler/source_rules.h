// The rules that order sources, the most important first. Each rule is a named cost; the source with the
// smaller cost is better. A rule decides only if all earlier rules give equal costs.
//
// Pure functions. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

// A source that shares a lane with the receiver.
struct UsableSource {
  const SourceQuery& query;
  const SourceCandidate& source;
  size_t lane_rank = 0;  // 0: the local lane; then the position in the receiver's list, fastest first
};

struct SourceRule {
  std::string_view name;
  uint64_t (*cost)(const UsableSource&);
};

inline constexpr size_t kSourceRules = 16;

std::span<const SourceRule, kSourceRules> SourceRules();

}  // namespace tensorcast::global_store
