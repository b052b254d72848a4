#include "cli/explain/named_cause.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tensorcast::explain {
namespace {

// Of two causes this close the one that an end recorded is named before cores, since a busy thread may do
// what the other cause makes it do.
constexpr double kCloseCauses = 0.1;
// Reading a disk, an object store or memory takes time where nothing is wrong with it, too. So what an end
// recorded of itself is named before it where it is this close.
constexpr double kCloseToReading = 0.2;
// Other receivers that cost more than this share are named in place of the link that they share.
constexpr double kMostlyOthers = 0.55;

bool IsReading(const Cause& cause) {
  return cause.name == "disk" || cause.name == "object store" || cause.name == "memory";
}

// Inferred from time that no end accounts for, or from threads that are busy for whatever reason.
bool IsInferred(const Cause& cause) {
  return cause.name == "network" || cause.name == "cores" || IsReading(cause);
}

// A slow link and those that share it cost the same bytes. A faster link would help all of them, so its
// share is the larger one; but a receiver that alone would have more than twice the rate is told of the
// others.
Cause LinkOrOthers(Cause link, const std::vector<Cause>& causes) {
  for (const Cause& cause : causes) {
    if (cause.name != "other receivers" || cause.grant_id != link.grant_id) continue;
    if (cause.share > kMostlyOthers) return cause;
    absl::StrAppend(&link.why, " ", cause.why);
  }
  return link;
}

}  // namespace

Cause CauseToName(const std::vector<Cause>& causes) {
  const auto max = std::ranges::max_element(causes, {}, &Cause::share);
  if (max == causes.end()) return {};
  if (max->name == "network") return LinkOrOthers(*max, causes);
  if (!IsInferred(*max)) return *max;
  const double close = IsReading(*max) ? kCloseToReading : kCloseCauses;
  const Cause* recorded = nullptr;
  for (const Cause& cause : causes) {
    if (IsInferred(cause) || cause.share < max->share - close) continue;
    if (recorded == nullptr || cause.share > recorded->share) recorded = &cause;
  }
  return recorded == nullptr ? *max : *recorded;
}

Cause MajorityOf(const std::vector<Cause>& causes) {
  Cause cause = CauseToName(causes);
  return cause.share > 0.5 ? cause : Cause();
}

}  // namespace tensorcast::explain
