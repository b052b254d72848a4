// What a receiver may wait for when no source can give it bytes now: replicas that fill, nodes that have not
// reported yet, and files of an import that another node reads.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "global_store/transfers/transfers.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kMaxNamed = 5;

// Receivers that wait ask again and again, and each time all replicas of the artifact are looked at: the more
// there are, the longer the pause.
constexpr absl::Duration kMinRetry = absl::Milliseconds(250);
constexpr absl::Duration kMaxRetry = absl::Seconds(10);
absl::Duration RetryAfter(size_t replicas) {
  return std::clamp(static_cast<int64_t>(replicas) * absl::Milliseconds(2), kMinRetry, kMaxRetry);
}
// Beside the time until it asks again: the call's own.
constexpr absl::Duration kAskingTime = absl::Seconds(1);
// A read of an origin counts as under way for so long if its outcome is never reported.
constexpr absl::Duration kLongestReading = absl::Hours(1);
// A receiver that waits for files of another node asks again after so long.
constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

std::string For(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
}

}  // namespace

// In this order: replicas that fill or are digested again, and nodes that will report; else files of the
// import that some node could read; else only what is out of reach is named, and there is no time to ask
// again.
void Transfers::OfferToWait(const Asking& asking, size_t elsewhere, GrantOffer& offer) {
  const GrantRequest& request = asking.request;
  const std::vector<std::string> reporting = NodesThatWillReport(asking);
  Waits::Waiting waiting{.reports = !reporting.empty(), .until = asking.now};
  AddFilling(asking, waiting, offer);
  offer.waiting_for.insert(offer.waiting_for.end(), reporting.begin(), reporting.end());
  if (offer.waiting_for.empty()) {
    waiting.nodes = OfferOrigins(asking, offer);
    if (waiting.nodes.empty()) {
      std::ranges::move(NodesAwayWith(asking), std::back_inserter(offer.waiting_for));
      std::ranges::move(UnreachableNodesWith(asking), std::back_inserter(offer.waiting_for));
      return;
    }
  }
  offer.retry_after = RetryAfter(elsewhere);
  waiting.until += 2 * offer.retry_after + kAskingTime;
  waits_.Begin(request.artifact_id, request.receiver.node_id, std::move(waiting));
}

void Transfers::AddFilling(const Asking& asking, Waits::Waiting& waiting, GrantOffer& offer) const {
  const std::string& artifact_id = asking.request.artifact_id;
  const auto add = [&](const Node& node, std::string_view does) {
    offer.waiting_for.push_back(absl::StrCat("the replica that ", does, " on node ", node.facts.name));
    waiting.nodes.push_back(node.facts.node_id);
  };
  inventory_.ForEach(artifact_id, [&](const Node& node, const HeldReplica& held) {
    if (&node == &asking.receiver || node.unreachable || !held.IsFilling()) return true;
    Waits::Search search{.receiver = &asking.receiver, .now = asking.now};
    bool rooted = waits_.IsRooted(node, artifact_id, search);
    // Each search begins with an empty `seen`, since the one above has marked the node as visited.
    // One that pulls from partial replicas may wait beside that.
    if (!rooted && waits_.Find(artifact_id, node.facts.node_id, asking.now) != nullptr) {
      search.seen.clear();
      rooted = waits_.LeadsOn(node, artifact_id, search);
    }
    const SourceCandidate candidate{
        .replica_id = held.facts.id, .end = &node.end, .place = held.facts.location.kind};
    if (rooted && CanUse(asking.query, candidate)) add(node, "fills");
    return waiting.nodes.size() < kMaxNamed;
  });
  for (const auto& [node_id, until] : waits_.BeginningOf(artifact_id)) {
    const Node* node = nodes_.Find(node_id);
    if (node == nullptr || node == &asking.receiver || until <= asking.now || node->unreachable) continue;
    const SourceCandidate candidate{.replica_id = "", .end = &node->end};
    Waits::Search search{.receiver = &asking.receiver, .now = asking.now};
    if (!CanUse(asking.query, candidate) || !waits_.IsRooted(*node, artifact_id, search)) continue;
    if (waiting.nodes.size() == kMaxNamed) return;
    add(*node, "begins to fill");
  }
}

// Replicas that were accused come back once their holders have digested them again.
std::vector<std::string> Transfers::NodesThatWillReport(const Asking& asking) const {
  std::vector<std::string> names;
  if (asking.now < nodes_.awaited_until()) {
    names.push_back(
        absl::StrCat("nodes that have not registered again since the start of the global store (max ",
                     For(nodes_.awaited_until() - asking.now + absl::Seconds(1)), " more)"));
  }
  for (const auto& [node_id, node] : nodes_.nodes()) {
    if (&node == &asking.receiver || asking.now - node.registered > node.ttl) continue;
    if (inventory_.HasReported(node_id)) continue;
    names.push_back(absl::StrCat("the inventory of node ", node.facts.name, ", which has just registered"));
    if (names.size() == kMaxNamed) break;
  }
  std::vector<std::string> accused;
  inventory_.ForEach(asking.request.artifact_id, [&](const Node& node, const HeldReplica& held) {
    const SourceCandidate candidate{
        .replica_id = held.facts.id, .end = &node.end, .place = held.facts.location.kind};
    const bool is_digested = held.corrupt && held.Matters() && asking.now < held.digested_by;
    if (is_digested && &node != &asking.receiver && !node.unreachable && CanUse(asking.query, candidate) &&
        !Names(asking.request.excluded_replicas, held.facts)) {
      accused.push_back(absl::StrCat("a replica that node ", node.facts.name, " digests again"));
    }
    return accused.size() < kMaxNamed;
  });
  std::ranges::move(accused, std::back_inserter(names));
  return names;
}

std::vector<std::string> Transfers::NodesAwayWith(const Asking& asking) const {
  std::vector<std::string> names;
  for (const auto& [node_id, away] : inventory_.away()) {
    if (!away.artifacts.contains(asking.request.artifact_id)) continue;
    names.push_back(absl::StrCat("node ", away.name, ", which has a copy and has been away for ",
                                 For(asking.now - away.since)));
    if (names.size() == kMaxNamed) break;
  }
  return names;
}

std::vector<std::string> Transfers::UnreachableNodesWith(const Asking& asking) const {
  std::set<std::string> names;
  const auto add = [&](const Node& node, LocationKind place) {
    const SourceCandidate candidate{.replica_id = "", .end = &node.end, .place = place};
    if (&node == &asking.receiver || !node.unreachable || !CanUse(asking.query, candidate)) return;
    names.insert(absl::StrCat(
        "node ", node.facts.name,
        ", which has a copy and reports that its own address does not answer: ", node.facts.grpc_address));
  };
  inventory_.ForEach(asking.request.artifact_id, [&](const Node& node, const HeldReplica& held) {
    const bool excluded = Names(asking.request.excluded_replicas, held.facts);
    if (!excluded && (held.IsSource() || held.IsFilling())) add(node, held.facts.location.kind);
    return names.size() < kMaxNamed;
  });
  for (const Origin& origin : LiveOrigins(asking.artifact)) {
    if (names.size() == kMaxNamed) break;
    if (IsShared(origin) || asking.artifact.IsGone(origin)) continue;
    add(*nodes_.Find(origin.node_id), LocationKind::kCpu);
  }
  return {names.begin(), names.end()};
}

// Where no other node has the bytes, an intact origin serves other nodes, too: its node is asked to make a
// replica of it, once for all receivers, and they wait for that.
std::vector<std::string> Transfers::OfferOrigins(const Asking& asking, GrantOffer& offer) {
  const auto& [request, receiver, artifact, query, now] = asking;
  const std::string& receiver_id = receiver.facts.node_id;
  const auto own = std::ranges::find_if(artifact.record.origins, [&](const Origin& origin) {
    return !IsShared(origin) && origin.node_id == receiver_id;
  });
  if (request.ReadsOwnFiles() && own != artifact.record.origins.end() && !artifact.IsGone(*own)) {
    // It reads them itself, unless they turn out to be gone, which matters where another node has some, too.
    const Catalog::OriginNote* note = artifact.NoteOf(*own);
    const bool known = note != nullptr && now - note->noted <= origin_finding_age_;
    const bool silent = now - receiver.silent_since <= origin_finding_age_;
    if (offer.origins.size() > 1 && !known && !silent && !receiver.unreachable) {
      offer.origin_to_check = {request.artifact_id, *own, receiver.facts.grpc_address};
    }
    return {};
  }
  for (const Origin& origin : offer.origins) {
    // Shared objects that this receiver cannot read may be read by the node that imported them.
    const Node* importer = nodes_.Find(origin.node_id);
    if (importer == nullptr) continue;
    const Node& node = *importer;
    const SourceCandidate candidate{.replica_id = "", .end = &node.end};
    if (origin.node_id == receiver_id || node.unreachable || artifact.IsGone(origin)) continue;
    if (!CanUse(query, candidate)) continue;
    // One that it holds in memory is what it would answer with.
    const HeldReplica* held = inventory_.FindInMemory(request.artifact_id, origin.node_id);
    if (held != nullptr && !held->evicting) continue;
    // It asked for leave to evict it and may have done so: in a moment it is offered again or gone.
    if (held != nullptr) {
      offer.waiting_for = {absl::StrCat("a replica that node ", node.facts.name, " may evict now")};
      offer.retry_after = kAskAgain;
      return {origin.node_id};
    }
    Waits::Reading& reading = waits_.ReadingOf(request.artifact_id, origin.node_id);
    if (reading.HasFailed(now)) {
      offer.waiting_for.push_back(absl::StrCat("the imported files of node ", node.facts.name,
                                               ", which the node could not read (", reading.error, ")"));
      continue;
    }
    // The first that asks starts the reading, once for all; the others are told to wait for it.
    if (!reading.IsUnderWay(now)) {
      reading = {.error = "", .until = now + kLongestReading};
      offer.origin_to_read = {request.artifact_id, origin, node.facts.grpc_address};
    }
    // The files are its own way to the bytes, whatever it was told to wait for before.
    waits_.End(request.artifact_id, origin.node_id);
    // It may have begun to pull from the receiver, when that one had a source: nothing comes that way now.
    Waits::Search search{.receiver = &receiver, .now = now};
    if (!waits_.IsRooted(node, request.artifact_id, search)) {
      std::vector<std::string> in_vain;
      for (const Grant* grant : grants_.Of(origin.node_id).receiving) {
        if (grant->artifact_id == request.artifact_id) in_vain.push_back(grant->grant_id);
      }
      grants_.EndAll(in_vain, GrantEnd::kRevoked, now);
    }
    offer.waiting_for = {absl::StrCat("node ", node.facts.name, ", which reads the files that it imported")};
    offer.retry_after = kAskAgain;
    return {origin.node_id};
  }
  return {};
}

}  // namespace tensorcast::global_store
