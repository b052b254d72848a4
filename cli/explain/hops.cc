#include "cli/explain/hops.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output/output.h"
#include "rpc/convert/transfer_reports.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::explain {
namespace {

// Two rates this close are one: the measured ones of a chain differ by its ends.
constexpr double kAsFast = 1.15;

constexpr size_t kNamesShown = 3;

using SourceList = std::vector<const SourceReport*>;

// Those that gave bytes, the largest giver first. Stable, so that equal ones stay in the order they joined.
SourceList GivingSources(const TransferReport& report) {
  SourceList sources;
  for (const SourceReport& source : report.sources) {
    if (source.bytes > 0) sources.push_back(&source);
  }
  std::ranges::stable_sort(sources, std::greater(), [](const SourceReport* source) { return source->bytes; });
  return sources;
}

uint64_t BytesOf(const SourceList& sources) {
  uint64_t bytes = 0;
  for (const SourceReport* source : sources) bytes += source->bytes;
  return bytes;
}

SourceList Those(SourceList sources, bool filling) {
  std::erase_if(sources, [filling](const SourceReport* source) { return source->filling != filling; });
  return sources;
}

// A node may be on the route with several replicas, so its name alone does not identify a hop.
const Hop* FindHop(const Route& route, const SourceInfo& source) {
  const auto found = std::ranges::find_if(route.hops, [&source](const Hop& hop) {
    return hop.node == source.name && hop.replica_id == source.replica_id;
  });
  return found == route.hops.end() ? nullptr : &*found;
}

std::string NamesOf(const SourceList& sources) {
  std::vector<std::string> names;
  for (const SourceReport* source : sources) {
    if (std::ranges::find(names, source->source.name) == names.end()) names.push_back(source->source.name);
  }
  const size_t all = names.size();
  names.resize(std::min(all, kNamesShown));
  std::string text = absl::StrJoin(names, ", ");
  if (all > kNamesShown) absl::StrAppend(&text, " and ", all - kNamesShown, " more");
  return text;
}

std::string Percent(uint64_t part, uint64_t whole) {
  return absl::StrFormat("%.0f %%",
                         whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// "12.5 MB/s: 80 % from node-1, which was filling, 20 % from node-0; nothing to ask for in 9.1 s of 10.4 s"
std::string StepOf(const TransferReport& report, const SourceList& sources) {
  std::string text = cli::FormatRate(RateOf(report));
  std::vector<std::string> parts;
  for (const bool filling : {false, true}) {
    const SourceList those = Those(sources, filling);
    if (those.empty()) continue;
    const bool one = those.size() == 1;
    parts.push_back(absl::StrCat(Percent(BytesOf(those), BytesOf(sources)), " from ", NamesOf(those),
                                 !filling ? ""
                                 : one    ? ", which was filling itself"
                                          : ", which were filling themselves"));
  }
  if (!parts.empty()) absl::StrAppend(&text, ": ", absl::StrJoin(parts, "; "));
  const TransferParts time = PartsOf(report);
  const absl::Duration moving = time.moving + time.starved;
  // Less than a tenth of the time is not worth a word.
  if (time.starved * 10 > moving) {
    absl::StrAppend(&text, "; nothing to ask for in ", cli::FormatSeconds(time.starved), " s of ",
                    cli::FormatSeconds(moving), " s");
  }
  return text;
}

// What was set for the nodes at the two ends of a link.
std::string LimitsOf(const Hop* from, const Hop& to, const SourceInfo& source) {
  std::vector<std::string> limits;
  const transport::Lane* const lane = transport::FindLane(source.lane);
  if (lane == nullptr || !lane->limited) return "";
  const auto add = [&limits](uint64_t limit, std::string_view which, const std::string& node) {
    if (limit == 0) return;
    limits.push_back(absl::StrCat(which, " of ", node, " is ", cli::FormatRate(static_cast<double>(limit))));
  };
  if (from != nullptr) add(from->limits.send(), "daemon.limits.send", source.name);
  add(to.limits.receive(), "daemon.limits.receive", to.node);
  return absl::StrJoin(limits, ", ");
}

// The source that gave the most bytes; of equal ones the source that had a request under way for longer.
// Null: there are no sources.
const SourceReport* MaxAsked(const SourceList& sources) {
  const auto max = std::ranges::max_element(
      sources, {}, [](const SourceReport* source) { return std::pair(source->bytes, source->asked); });
  return max == sources.end() ? nullptr : *max;
}

// The source that is the cause by itself; null: none is.
const SourceReport* HeldUpAt(const SourceList& sources, const Cause& cause) {
  if (cause.grant_id.empty() || cause.name == "unknown") return nullptr;
  const auto found = std::ranges::find_if(
      sources, [&cause](const SourceReport* source) { return source->source.grant_id == cause.grant_id; });
  if (found == sources.end()) return nullptr;
  // A source that was being filled may have waited for that, and not for its link.
  return cause.name == "network" && (*found)->filling ? nullptr : *found;
}

BoundingHop LinkOf(const Route& route, const Hop& to, const SourceReport& source, std::string part,
                   std::vector<std::string> steps) {
  const Hop* const from = FindHop(route, source.source);
  return {.from = source.source.name,
          .to = to.node,
          .lane = source.source.lane,
          .part = std::move(part),
          .why = LimitsOf(from, to, source.source),
          .steps = std::move(steps)};
}

// Of the sources that filled, the hop that was not faster than this one: this one waited for it.
const Hop* HeldBackBy(const Route& route, const Hop& hop, const SourceList& filling,
                      const std::set<const Hop*>& seen) {
  for (const SourceReport* source : filling) {
    const Hop* const up = FindHop(route, source->source);
    if (up == nullptr || !up->transfer.has_value() || seen.contains(up)) continue;
    if (RateOf(*up->transfer) <= RateOf(*hop.transfer) * kAsFast) return up;
  }
  return nullptr;
}

// Why its transfer is not known; empty where it is.
std::string WhyUnknown(const Route& route, const SourceReport& source) {
  const Hop* const up = FindHop(route, source.source);
  if (up == nullptr) return absl::StrCat(source.source.name, " was not asked");
  if (up->transfer.has_value()) return "";
  if (up->problem.empty()) return absl::StrCat(up->node, " does not remember its transfer");
  return absl::StrCat(up->node, " does not answer: ", up->problem);
}

// Of a link from a source that was being filled: a receiver that mostly had nothing to ask for waited for
// what filled the source, one that always had something for the link.
std::string WhatLinkTells(const BoundingHop& hop, const TransferReport& report) {
  const TransferParts time = PartsOf(report);
  const absl::Duration moving = time.moving + time.starved;
  if (hop.part != "starved") return absl::StrCat(hop.to, " had something to ask for nearly all the time");
  return absl::StrCat(hop.to, " had nothing to ask for in ", cli::FormatSeconds(time.starved), " s of ",
                      cli::FormatSeconds(moving), " s, so the link was not the limit");
}

}  // namespace

Route RouteOf(const v1::ExplainTransferResponse& response) {
  Route route{.left_out = response.left_out()};
  for (const v1::TransferHop& message : response.hops()) {
    Hop hop{.node = message.node(),
            .replica_id = message.replica_id(),
            .under_way = message.under_way(),
            .servings = {message.servings().begin(), message.servings().end()},
            .limits = message.limits(),
            .problem = message.problem()};
    if (message.has_transfer()) {
      absl::StatusOr<TransferReport> report = rpc::FromProto(message.transfer());
      if (report.ok()) {
        hop.transfer = *std::move(report);
      } else {
        hop.problem = std::string(report.status().message());
      }
    }
    route.hops.push_back(std::move(hop));
  }
  return route;
}

std::vector<SourceDetails> DetailsOf(const Route& route, const TransferReport& report) {
  std::vector<SourceDetails> details = SourcesOf(report);
  for (SourceDetails& detail : details) {
    if (detail.mapped) continue;
    detail.problem = absl::StrCat("daemon ", detail.source, " was not asked");
    for (const Hop& hop : route.hops) {
      // The first hop is the receiver's.
      if (hop.node != detail.source || &hop == &route.hops.front()) continue;
      // The grant identifies the pull. The lane tells two pulls under one grant apart.
      const auto served = std::ranges::find_if(hop.servings, [&detail](const v1::ServeReport& one) {
        return one.grant_id() == detail.grant_id && one.lane() == detail.lane;
      });
      if (served != hop.servings.end()) {
        // A pull that changed its lane was opened twice. The newest comes first.
        detail.served = *served;
        detail.problem.clear();
        break;
      }
      detail.problem = hop.problem.empty() ? absl::StrCat("daemon ", detail.source,
                                                          " no longer remembers grant ", detail.grant_id)
                                           : hop.problem;
    }
  }
  return details;
}

double RateOf(const TransferReport& report) {
  const TransferParts parts = PartsOf(report);
  const absl::Duration moved = parts.moving + parts.starved + parts.gaps;
  return moved <= absl::ZeroDuration() ? 0 : static_cast<double>(report.bytes) / absl::ToDoubleSeconds(moved);
}

// Up the way from the receiver, for as long as what a node was given came from others that were being filled,
// no faster than it. That ends at a node that was held up by itself, at a link from a source that had
// everything, where nothing is known of those further up, or where the nodes fed each other: then what they
// had came from outside, and the link over which most of that came is named.
std::optional<BoundingHop> FindBoundingHop(const Route& route) {
  if (route.hops.empty() || !route.hops.front().transfer.has_value()) return std::nullopt;
  if (!route.hops.front().transfer->status.ok()) return std::nullopt;
  const Hop* at = &route.hops.front();
  const auto from_another = [](const SourceReport& source) {
    return source.bytes > 0 && !source.source.grant_id.empty();
  };
  if (std::ranges::none_of(at->transfer->sources, from_another)) return std::nullopt;
  std::vector<std::string> steps;
  std::set<const Hop*> seen;
  // Of all nodes on the way, the most that came from a node with all of it.
  const SourceReport* outside = nullptr;
  const Hop* outside_to = nullptr;
  while (true) {
    seen.insert(at);
    const TransferReport& report = *at->transfer;
    const SourceList sources = GivingSources(report);
    steps.push_back(absl::StrCat(at->node, "  ", StepOf(report, sources)));
    const Bound bound = FindBound(report, DetailsOf(route, report));
    const std::string& part = bound.part;
    const std::string& cause = bound.cause.name;
    // Held up by itself: by verifying, placing, or by what it did before and after, or because it could not
    // run or had no memory to fetch into. No source is the reason.
    const bool by_itself =
        bound.cause.grant_id.empty() && (cause == "stopped" || cause == "no cpu" || cause == "buffers");
    if ((part != "fetch" && part != "starved") || by_itself) {
      return BoundingHop{.to = at->node, .part = part, .cause = cause, .steps = std::move(steps)};
    }
    // One of its sources could not send, whatever filled that one.
    if (const SourceReport* const source = HeldUpAt(sources, bound.cause); source != nullptr) {
      BoundingHop hop = LinkOf(route, *at, *source, part, std::move(steps));
      hop.cause = cause;
      return hop;
    }
    const SourceList ready = Those(sources, /*filling=*/false);
    const SourceList filling = Those(sources, /*filling=*/true);
    const SourceReport* const heaviest = MaxAsked(ready);
    // Remembered for the case of a cycle, where the way ends at a node that was on it already.
    if (heaviest != nullptr && (outside == nullptr || heaviest->bytes > outside->bytes)) {
      outside = heaviest;
      outside_to = at;
    }
    // Most came from nodes that had everything: the link to the one that gave most is the limit.
    if (heaviest != nullptr && BytesOf(ready) >= BytesOf(filling)) {
      BoundingHop hop = LinkOf(route, *at, *heaviest, part, std::move(steps));
      hop.cause = cause;
      return hop;
    }
    if (filling.empty()) return BoundingHop{.to = at->node, .part = part, .steps = std::move(steps)};
    // Most came from nodes that were filling. One that was itself not faster held this one back: one step up.
    if (const Hop* const up = HeldBackBy(route, *at, filling, seen); up != nullptr) {
      at = up;
      continue;
    }
    // No filling source is known to be slower: either the nodes fed each other, or the link from the largest
    // giver is the limit, or nothing is known of what filled it.
    const SourceReport& largest = *filling.front();
    const bool all_seen = std::ranges::all_of(filling, [&](const SourceReport* source) {
      const Hop* const up = FindHop(route, source->source);
      return up != nullptr && seen.contains(up);
    });
    if (all_seen && outside != nullptr) {
      // A cycle: what its nodes have came from outside.
      BoundingHop hop = LinkOf(route, *outside_to, *outside, part, std::move(steps));
      hop.why = absl::StrCat("the nodes above passed on to each other what came over this link",
                             hop.why.empty() ? "" : "; ", hop.why);
      return hop;
    }
    BoundingHop hop = LinkOf(route, *at, largest, part, std::move(steps));
    if (const std::string why = WhyUnknown(route, largest); !why.empty()) {
      hop.silent = largest.source.name;
      hop.why =
          absl::StrCat(WhatLinkTells(hop, report), "; what filled ", hop.silent, " is not known: ", why);
    }
    return hop;
  }
}

std::string RouteText(const Route& route) {
  const std::optional<BoundingHop> hop = FindBoundingHop(route);
  if (!hop.has_value()) return "";
  std::string text;
  if (hop->steps.size() > 1) {
    text = "the path of the bytes, from this node back to the first source\n";
    for (const std::string& step : hop->steps) absl::StrAppend(&text, "  ", step, "\n");
  }
  const std::string name = hop->from.empty() ? absl::StrCat(hop->to, " itself (", hop->part, ")")
                           : hop->silent.empty() || hop->part != "starved"
                               ? absl::StrCat(hop->from, " -> ", hop->to, " over ", hop->lane)
                               : absl::StrCat("before ", hop->silent);
  absl::StrAppend(&text, "Bounding hop: ", name, hop->cause.empty() ? "" : "; cause: ", hop->cause,
                  hop->why.empty() ? "" : "; ", hop->why, ".\n");
  if (!route.left_out.empty()) absl::StrAppend(&text, route.left_out, "\n");
  return text;
}

std::string FailuresText(const Route& route) {
  std::string text;
  for (const Hop& hop : route.hops) {
    if (&hop == &route.hops.front()) continue;
    if (hop.transfer.has_value() && !hop.transfer->status.ok()) {
      absl::StrAppend(&text, "  ", hop.node, " was being filled itself, and its own transfer failed: ",
                      hop.transfer->status.ToString(), "\n");
    }
    if (!hop.problem.empty()) absl::StrAppend(&text, "  ", hop.node, " does not answer: ", hop.problem, "\n");
  }
  if (!route.left_out.empty()) absl::StrAppend(&text, route.left_out, "\n");
  return text;
}

}  // namespace tensorcast::explain
