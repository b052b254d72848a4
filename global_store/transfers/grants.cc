#include "global_store/transfers/grants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "global_store/scheduler/link_rates.h"

namespace tensorcast::global_store {
namespace {

// A token outlives its grant where a receiver queues before it opens the pull, but never by more than this.
constexpr absl::Duration kMaxTokenAge = absl::Hours(1);

// A node that a receiver overtook comes after others for so long, and for twice as long the next time.
constexpr absl::Duration kFirstRest = absl::Seconds(10);
constexpr absl::Duration kLongestRest = absl::Minutes(5);

// A source that serves an ended grant in this many heartbeats is at fault: the answers to all of these but
// the last one told it of the end.
constexpr uint32_t kServedAfterEnd = 4;

}  // namespace

std::string_view GrantEndName(GrantEnd end) {
  switch (end) {
    case GrantEnd::kSucceeded:
      return "succeeded";
    case GrantEnd::kFailed:
      return "failed";
    case GrantEnd::kCancelled:
      return "cancelled";
    case GrantEnd::kOvertaken:
      return "overtaken";
    case GrantEnd::kExpired:
      return "expired";
    case GrantEnd::kRevoked:
      return "revoked";
  }
  return "unknown";
}

uint32_t Grants::OfNode::UploadsOf(std::string_view artifact_id) const {
  const auto found = uploads.find(artifact_id);
  return found == uploads.end() ? 0 : found->second / kSlotParts;
}

absl::Duration Grants::Ttl() const { return std::max(ttl_, 3 * nodes_.LivenessNow().heartbeat_interval); }

const Grant* Grants::Find(std::string_view grant_id) const {
  const auto grant = grants_.find(grant_id);
  return grant == grants_.end() ? nullptr : &grant->second;
}

const Grants::OfNode& Grants::Of(std::string_view node_id) const {
  static const OfNode kNone;
  const auto node = of_node_.find(node_id);
  return node == of_node_.end() ? kNone : node->second;
}

const std::vector<const Grant*>& Grants::Into(std::string_view zone, std::string_view artifact_id) const {
  static const std::vector<const Grant*> kNone;
  const auto artifacts = into_.find(zone);
  if (artifacts == into_.end()) return kNone;
  const auto grants = artifacts->second.find(artifact_id);
  return grants == artifacts->second.end() ? kNone : grants->second;
}

std::vector<std::string> Grants::RevokedOf(std::string_view node_id) const {
  std::vector<std::string> revoked;
  for (const auto& [grant_id, told] : Of(node_id).revoked) revoked.push_back(grant_id);
  return revoked;
}

const Grant& Grants::Give(const GrantRequest& request, const Node& source, const std::string& replica_id,
                          std::string lane, SteadyTime now) {
  const Node* receiver = nodes_.Find(request.receiver.node_id);
  const bool across = receiver != nullptr && IsAcrossZones(receiver->end, source.end);
  OfNode& serves = of_node_[source.facts.node_id];
  // The token ends at an age of the source's key: the source measures that by its own clock, since heartbeats
  // tell it how old the key is. So the clocks of the two hosts need not agree.
  const absl::Duration token_age = std::clamp(request.timeout, ttl_, std::max(ttl_, kMaxTokenAge));
  uint32_t share = 0;
  while (std::ranges::any_of(serves.serving, [&](const Grant* grant) {
    return grant->replica_id == replica_id && grant->share == share;
  })) {
    ++share;
  }
  const std::string grant_id = secrets_->NewGrantId();
  Grant& grant = grants_[grant_id] = {.grant_id = grant_id,
                                      .artifact_id = request.artifact_id,
                                      .replica_id = replica_id,
                                      .source_node = source.facts.node_id,
                                      .receiver_node = request.receiver.node_id,
                                      .destination = request.destination,
                                      .lane = std::move(lane),
                                      .issued = now,
                                      .expires = now + Ttl(),
                                      .token_expires = now - source.grant_key_given + token_age,
                                      .into_zone = across ? receiver->end.zone : "",
                                      .share = share};
  serves.serving.push_back(&grant);
  Weigh(grant);
  of_node_[request.receiver.node_id].receiving.push_back(&grant);
  if (across) into_[grant.into_zone][grant.artifact_id].push_back(&grant);
  return grant;
}

void Grants::Weigh(Grant& grant) {
  const Node* source = nodes_.Find(grant.source_node);
  const Node* receiver = nodes_.Find(grant.receiver_node);
  const bool known = source != nullptr && receiver != nullptr;
  const uint32_t parts = known ? SlotPartsOf(receiver->end, source->end) : kSlotParts;
  // The difference may be negative. Unsigned arithmetic wraps around, so that the sum is right all the same.
  of_node_[grant.source_node].uploads[grant.artifact_id] += parts - grant.slot_parts;
  grant.slot_parts = parts;
}

void Grants::Reweigh(std::string_view node_id) {
  const OfNode& node = Of(node_id);
  for (const auto& side : {&node.receiving, &node.serving}) {
    for (const Grant* grant : *side) Weigh(grants_.find(grant->grant_id)->second);
  }
}

void Grants::Renew(std::string_view receiver, const std::vector<std::string>& grant_ids, SteadyTime now) {
  for (const std::string& grant_id : grant_ids) {
    const auto grant = grants_.find(grant_id);
    if (grant != grants_.end() && grant->second.receiver_node == receiver) {
      grant->second.expires = now + Ttl();
    }
  }
}

std::vector<std::string> Grants::NoteServed(const std::string& node_id,
                                            const std::vector<std::string>& grant_ids) {
  std::vector<std::string> violations;
  const auto node = of_node_.find(node_id);
  if (node == of_node_.end()) return violations;
  for (const std::string& grant_id : grant_ids) {
    const auto told = node->second.revoked.find(grant_id);
    if (told == node->second.revoked.end() || ++told->second.served != kServedAfterEnd) continue;
    violations.push_back(absl::StrCat("grant ", grant_id,
                                      " has ended, but the source still serves the pull, although the global "
                                      "store reported the end to the source ",
                                      kServedAfterEnd - 1, " times"));
  }
  return violations;
}

void Grants::Complete(std::string_view grant_id, GrantEnd end, SteadyTime now) {
  const Grant& grant = *Find(grant_id);
  NoteServing(of_node_[grant.source_node], end, now);
  TellRevoked(grant.source_node, grant.grant_id, now);
  End(std::string(grant_id), end);
}

// One receiver's word only orders sources, for a while: it may be the receiver that lies, or its own link
// that hangs.
void Grants::NoteServing(OfNode& source, GrantEnd end, SteadyTime now) {
  if (end == GrantEnd::kSucceeded) source.overtaken_rest = absl::ZeroDuration();
  // Several receivers at one moment learn of one fault.
  if (end != GrantEnd::kOvertaken || now < source.overtaken_until) return;
  source.overtaken_rest = std::clamp(source.overtaken_rest * 2, kFirstRest, kLongestRest);
  source.overtaken_until = now + source.overtaken_rest;
}

void Grants::End(const std::string& grant_id, GrantEnd end) {
  const auto grant = grants_.find(grant_id);
  OfNode& source = of_node_[grant->second.source_node];
  // The grant leaves every index that points at it before it is moved away.
  std::erase(source.serving, &grant->second);
  const auto uploads = source.uploads.find(grant->second.artifact_id);
  uploads->second -= grant->second.slot_parts;
  if (uploads->second == 0) source.uploads.erase(uploads);
  std::erase(of_node_[grant->second.receiver_node].receiving, &grant->second);
  if (const auto zone = into_.find(grant->second.into_zone); zone != into_.end()) {
    const auto into = zone->second.find(grant->second.artifact_id);
    std::erase(into->second, &grant->second);
    if (into->second.empty()) zone->second.erase(into);
    if (zone->second.empty()) into_.erase(zone);
  }
  ended_.push_back({.grant = std::move(grant->second), .end = end});
  grants_.erase(grant);
}

void Grants::EndAll(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now) {
  for (const std::string& grant_id : grant_ids) {
    const Grant& grant = grants_.find(grant_id)->second;
    TellRevoked(grant.source_node, grant_id, now);
    TellRevoked(grant.receiver_node, grant_id, now);
    End(grant_id, end);
  }
}

void Grants::EndOfArtifact(std::string_view artifact_id, SteadyTime now) {
  std::vector<std::string> ending;
  for (const auto& [grant_id, grant] : grants_) {
    if (grant.artifact_id == artifact_id) ending.push_back(grant_id);
  }
  EndAll(ending, GrantEnd::kRevoked, now);
}

void Grants::EndOf(std::string_view node_id, SteadyTime now) {
  // The ids are collected first, since each end changes the lists.
  std::vector<std::string> ending;
  for (const auto* grants : {&Of(node_id).serving, &Of(node_id).receiving}) {
    for (const Grant* grant : *grants) ending.push_back(grant->grant_id);
  }
  EndAll(ending, GrantEnd::kExpired, now);
  of_node_.erase(node_id);
}

void Grants::Tick(SteadyTime now) {
  for (auto& [node_id, node] : of_node_) {
    absl::erase_if(node.revoked, [&](const auto& entry) { return entry.second.until < now; });
  }
  std::vector<std::string> expired;
  for (const auto& [grant_id, grant] : grants_) {
    if (grant.expires < now) expired.push_back(grant_id);
  }
  EndAll(expired, GrantEnd::kExpired, now);
}

void Grants::ExtendLiveness(absl::Duration gap) {
  for (auto& [node_id, node] : of_node_) {
    for (auto& [grant_id, told] : node.revoked) told.until += gap;
  }
  for (auto& [grant_id, grant] : grants_) grant.expires += gap;
}

// Repeated in each heartbeat for a while, since an answer can be lost; both ends take it any number of times.
void Grants::TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now) {
  if (const Node* node = nodes_.Find(node_id)) {
    of_node_[node_id].revoked[grant_id] = {.until = now + node->ttl};
  }
}

}  // namespace tensorcast::global_store
