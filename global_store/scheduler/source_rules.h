// The rules by which one source is preferred to another, in the order in which they count. Each is a named
// cost: the smaller, the better. A rule is heard only where those before it make no difference.
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
  size_t lane_rank = 0;  // 0: the local lane; then places in the receiver's list, the fastest first
};

struct SourceRule {
  std::string_view name;
  uint64_t (*cost)(const UsableSource&);
};

inline constexpr size_t kSourceRules = 16;

std::span<const SourceRule, kSourceRules> SourceRules();

}  // namespace tensorcast::global_store
