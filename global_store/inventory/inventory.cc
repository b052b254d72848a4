#include "global_store/inventory/inventory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "core/replica/inventory_digest.h"

namespace tensorcast::global_store {
namespace {

// How long a node that is gone is waited for by name.
constexpr absl::Duration kAwayAge = absl::Hours(24);

// A node's replica may change a moment before it counts the change, and a publication may name a replica
// before the node's own update does. Such a difference passes: one that stays for so long does not.
constexpr absl::Duration kSettles = absl::Seconds(5);

bool Removes(ReplicaState state) { return state == ReplicaState::kGone || state == ReplicaState::kFailed; }

}  // namespace

bool Names(const std::vector<std::string>& names, const ReplicaInfo& replica) {
  return std::ranges::any_of(names, [&](std::string_view name) {
    if (name == replica.id) return true;
    return absl::ConsumePrefix(&name, replica.node_id) && absl::ConsumePrefix(&name, "/") &&
           name == replica.id;
  });
}

void Inventory::Suspend(std::string_view node_id) {
  const auto held = held_.find(node_id);
  if (held == held_.end()) return;
  // The index sorts sources by rack and zone. So the replicas leave it before a registration changes the
  // node's labels, and join it again afterwards (Admit).
  for (const auto& [replica_id, replica] : held->second.replicas) sources_.Leave(*held->second.node, replica);
}

void Inventory::Admit(const Node& node) {
  Held& held = held_[node.facts.node_id];
  held.node = &node;
  // Reports of the node may have been missed before it registered, so all that is known of it is to be
  // replaced by its inventory.
  held.wanted = true;
  held.reported = false;
  for (auto& [replica_id, replica] : held.replicas) sources_.Join(node, replica);
}

void Inventory::Remove(const Node& node, SteadyTime now) {
  const auto held = held_.find(node.facts.node_id);
  // The absence is noted while the replicas are still here.
  NoteAway(held->second, /*only_disk=*/false, now);
  while (!held->second.replicas.empty()) {
    Erase(held->second, std::string(held->second.replicas.begin()->first));
  }
  held_.erase(held);
}

absl::Status Inventory::Check(const std::string& node_id, const ReplicaInfo& replica) {
  constexpr size_t kMaxIdBytes = 128;
  for (const std::string* id : {&replica.id, &replica.artifact_id}) {
    if (id->size() <= kMaxIdBytes && IsPrintable(*id)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("report replicas of node ", node_id, ": the id ", QuoteName(*id),
                     id->size() > kMaxIdBytes ? absl::StrCat(" has more than ", kMaxIdBytes, " bytes")
                                              : " is not printable",
                     "; report another id"));
  }
  if (replica.id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("report replicas of node ", node_id, ": a replica has no id; give each replica an id"));
  }
  if (!replica.node_id.empty() && replica.node_id != node_id) {
    return absl::InvalidArgumentError(absl::StrCat("report replica ", replica.id, " of node ", node_id,
                                                   ": the replica is of node ", replica.node_id,
                                                   "; report the replica from that node"));
  }
  if (replica.state == ReplicaState::kReady && replica.artifact_id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("report replica ", replica.id, " of node ", node_id,
                     ": the replica is ready, but names no artifact; name the artifact"));
  }
  return absl::OkStatus();
}

void Inventory::LeaveHolders(const std::string& artifact_id, const std::string& node_id,
                             const std::string& replica_id) {
  const auto holders = holders_.find(artifact_id);
  if (holders == holders_.end()) return;
  holders->second.erase({node_id, replica_id});
  if (holders->second.empty()) holders_.erase(holders);
}

void Inventory::Put(Held& held, const ReplicaInfo& reported) {
  const std::string& node_id = held.node->facts.node_id;
  const auto [at, fresh] = held.replicas.try_emplace(reported.id);
  if (fresh) ++replicas_;
  HeldReplica& replica = at->second;
  // The digest of a node is a sum over its replicas, modulo 2^64. The part of an empty replica is 0.
  held.digest += InventoryDigestOf(reported) - InventoryDigestOf(replica.facts);
  // The index knows the replica by its previous state: it leaves under that one, and joins under the new one
  // at the end.
  sources_.Leave(*held.node, replica);
  if (replica.facts.artifact_id != reported.artifact_id) {
    LeaveHolders(replica.facts.artifact_id, node_id, reported.id);
  }
  // It fills again: as if it were a new one, but for what it has.
  if (replica.IsPartial() && reported.state != ReplicaState::kPartial) {
    replica.looks = {};
    replica.hostmates = {};
  }
  replica.facts = reported;  // `evicting` and `corrupt` stay: they go with the replica's id
  replica.facts.node_id = node_id;
  if (!reported.artifact_id.empty()) holders_[reported.artifact_id].emplace(node_id, reported.id);
  sources_.Join(*held.node, replica);
}

bool Inventory::Erase(Held& held, const std::string& replica_id) {
  const auto replica = held.replicas.find(replica_id);
  if (replica == held.replicas.end()) return false;
  LeaveHolders(replica->second.facts.artifact_id, held.node->facts.node_id, replica_id);
  sources_.Leave(*held.node, replica->second);
  held.digest -= InventoryDigestOf(replica->second.facts);
  --replicas_;
  held.replicas.erase(replica);
  return true;
}

void Inventory::NoteAway(const Held& held, bool only_disk, SteadyTime now) {
  AwayNode away{.name = held.node->facts.name, .since = now, .artifacts = {}};
  for (const auto& [replica_id, replica] : held.replicas) {
    if (only_disk && replica.facts.location.kind != LocationKind::kDisk) continue;
    // Only what can be a source when the node comes back is worth waiting for.
    if (replica.IsSource() && catalog_.Find(replica.facts.artifact_id) != nullptr) {
      away.artifacts.insert(replica.facts.artifact_id);
    }
  }
  if (!away.artifacts.empty()) away_[held.node->facts.node_id] = std::move(away);
}

InventoryChange Inventory::Update(const std::string& node_id, uint64_t sequence,
                                  const std::vector<ReplicaInfo>& replicas) {
  Held& held = held_.find(node_id)->second;
  if (sequence <= held.sequence) return {.inventory_wanted = held.wanted};  // a repeated call
  // After a gap these replicas are still as the node says; it is others that may be wrong until the inventory
  // comes.
  if (sequence != held.sequence + 1) held.wanted = true;
  held.sequence = sequence;
  InventoryChange change{.inventory_wanted = held.wanted};
  for (const ReplicaInfo& replica : replicas) {
    if (!Check(node_id, replica).ok()) continue;
    change.artifacts.push_back(replica.artifact_id);
    if (!Removes(replica.state)) {
      Put(held, replica);
      continue;
    }
    held.removed.Note(replica.id);
    if (Erase(held, replica.id)) change.gone.push_back(replica.id);
  }
  return change;
}

InventoryChange Inventory::Reconcile(const std::string& node_id, uint64_t sequence,
                                     const std::vector<ReplicaInfo>& replicas, SteadyTime now) {
  Held& held = held_.find(node_id)->second;
  std::set<std::string> unknown;
  std::map<std::string, const ReplicaInfo*, std::less<>> listed;
  for (const ReplicaInfo& replica : replicas) {
    if (Removes(replica.state) || !Check(node_id, replica).ok()) continue;
    listed[replica.id] = &replica;
    // Told back, so that the node publishes them again. Not what was deleted: that it is told to forget.
    if (replica.state == ReplicaState::kReady && catalog_.Find(replica.artifact_id) == nullptr &&
        !catalog_.IsDeleted(replica.artifact_id)) {
      unknown.insert(replica.artifact_id);
    }
  }
  InventoryChange change{.unknown = {unknown.begin(), unknown.end()}};
  // The snapshot was taken before an update that has arrived already (a repeated call, a slow one): it would
  // bring back what is gone.
  if (sequence < held.sequence) {
    held.wanted = true;
    change.inventory_wanted = true;
    return change;
  }
  away_.erase(node_id);
  // A daemon that stops says that it holds nothing; its packed files come back with it.
  if (listed.empty()) NoteAway(held, /*only_disk=*/true, now);
  for (const auto& [replica_id, replica] : held.replicas) {
    if (!listed.contains(replica_id)) change.gone.push_back(replica_id);
  }
  for (const std::string& replica_id : change.gone) {
    held.removed.Note(replica_id);
    Erase(held, replica_id);
  }
  for (const auto& [replica_id, replica] : listed) Put(held, *replica);
  held.sequence = sequence;
  held.wanted = false;
  held.reported = true;
  return change;
}

void Inventory::AddPublished(const std::string& node_id, const ReplicaInfo& replica) {
  Held& held = held_.find(node_id)->second;
  // A report of the node itself is newer, and stays: that it holds the replica, or that it is gone.
  if (held.replicas.contains(replica.id) || held.removed.Contains(replica.id)) return;
  if (Check(node_id, replica).ok()) Put(held, replica);
}

bool Inventory::NoteSequence(const std::string& node_id, uint64_t sequence) {
  Held& held = held_.find(node_id)->second;
  if (held.reported) away_.erase(node_id);
  // A heartbeat may overtake the update that it names, so only what the one before named is missed.
  if (held.sequence < held.reported_sequence) held.wanted = true;
  held.reported_sequence = sequence;
  return held.wanted;
}

// A comparison needs both sides at one sequence, with no inventory under way. A difference that stays the
// same for kSettles is a violation. The first report of a violation asks for an inventory; later ones only
// count, until a digest is equal again.
InventoryMatch Inventory::Compare(const std::string& node_id, uint64_t sequence, uint64_t digest,
                                  SteadyTime now) {
  Held& held = held_.find(node_id)->second;
  if (sequence != held.sequence || !held.reported || held.wanted) {
    held.doubted_since = SteadyTime::InfiniteFuture();
    return InventoryMatch::kUnknown;
  }
  if (digest == held.digest) {
    held.doubted_since = SteadyTime::InfiniteFuture();
    held.differs = false;
    return InventoryMatch::kEqual;
  }
  const bool doubted = held.doubted_since != SteadyTime::InfiniteFuture() &&
                       held.doubted_sequence == sequence && held.doubted_digest == digest;
  if (!doubted) {
    held.doubted_sequence = sequence;
    held.doubted_digest = digest;
    held.doubted_since = now;
  }
  if (now - held.doubted_since < kSettles) return InventoryMatch::kUnknown;
  if (held.differs) return InventoryMatch::kDiffers;
  // Once: an inventory that does not mend it would be sent for ever.
  held.wanted = true;
  held.differs = true;
  return InventoryMatch::kBeganToDiffer;
}

uint64_t Inventory::DigestOf(std::string_view node_id) const {
  const auto held = held_.find(node_id);
  return held == held_.end() ? 0 : held->second.digest;
}

void Inventory::Change(const ReplicaName& name, absl::FunctionRef<void(HeldReplica&)> change) {
  const auto held = held_.find(name.node_id);
  if (held == held_.end()) return;
  const auto replica = held->second.replicas.find(name.replica_id);
  if (replica == held->second.replicas.end()) return;
  // The change may move the replica between the ready and the filling sources, or out of the index.
  sources_.Leave(*held->second.node, replica->second);
  held->second.digest -= InventoryDigestOf(replica->second.facts);
  change(replica->second);
  held->second.digest += InventoryDigestOf(replica->second.facts);
  sources_.Join(*held->second.node, replica->second);
}

void Inventory::ExpireAway(SteadyTime now) {
  absl::erase_if(away_, [&](const auto& entry) { return now - entry.second.since > kAwayAge; });
}

const HeldReplica* Inventory::Find(std::string_view node_id, std::string_view replica_id) const {
  const auto held = held_.find(node_id);
  if (held == held_.end()) return nullptr;
  const auto replica = held->second.replicas.find(replica_id);
  return replica == held->second.replicas.end() ? nullptr : &replica->second;
}

const Inventory::Replicas& Inventory::ReplicasOf(std::string_view node_id) const {
  static const Replicas kNone;
  const auto held = held_.find(node_id);
  return held == held_.end() ? kNone : held->second.replicas;
}

const Inventory::Holders& Inventory::HoldersOf(std::string_view artifact_id) const {
  static const Holders kNone;
  const auto holders = holders_.find(artifact_id);
  return holders == holders_.end() ? kNone : holders->second;
}

void Inventory::ForEach(std::string_view artifact_id,
                        absl::FunctionRef<bool(const Node&, const HeldReplica&)> visit) const {
  for (const auto& [node_id, replica_id] : HoldersOf(artifact_id)) {
    const Held& held = held_.find(node_id)->second;
    if (!visit(*held.node, held.replicas.find(replica_id)->second)) return;
  }
}

void Inventory::ForEachOf(std::string_view artifact_id, std::string_view node_id,
                          absl::FunctionRef<void(const SourceRef&)> visit) const {
  const auto held = held_.find(node_id);
  if (held == held_.end()) return;
  const Holders& holders = HoldersOf(artifact_id);
  for (auto it = holders.lower_bound({std::string(node_id), ""}); it != holders.end() && it->first == node_id;
       ++it) {
    visit(SourceRef{held->second.node, &held->second.replicas.find(it->second)->second});
    // Holders are sorted by node id, so those of one node follow each other.
  }
}

const HeldReplica* Inventory::FindOf(std::string_view artifact_id, std::string_view node_id,
                                     absl::FunctionRef<bool(const HeldReplica&)> fits) const {
  const HeldReplica* found = nullptr;
  ForEachOf(artifact_id, node_id, [&](const SourceRef& own) {
    if (found == nullptr && fits(*own.replica)) found = own.replica;
  });
  return found;
}

const HeldReplica* Inventory::FindInMemory(std::string_view artifact_id, std::string_view node_id) const {
  return FindOf(artifact_id, node_id, [](const HeldReplica& replica) {
    return replica.facts.location.kind == LocationKind::kCpu && replica.facts.state == ReplicaState::kReady;
  });
}

HeldReplica* Inventory::FindFilling(std::string_view artifact_id, std::string_view node_id,
                                    const Location& location) {
  const HeldReplica* found = FindOf(artifact_id, node_id, [&](const HeldReplica& replica) {
    return replica.IsFilling() && replica.facts.location == location;
  });
  return found == nullptr ? nullptr : &held_.find(node_id)->second.replicas.find(found->facts.id)->second;
}

bool Inventory::IsAwayWith(std::string_view artifact_id) const {
  return std::ranges::any_of(away_,
                             [&](const auto& node) { return node.second.artifacts.contains(artifact_id); });
}

// Derived from what the node still reports, so it is repeated until the node has obeyed and said so.
std::vector<std::string> Inventory::ForgottenOn(std::string_view node_id) const {
  std::set<std::string> forgotten;
  for (const auto& [replica_id, replica] : ReplicasOf(node_id)) {
    if (catalog_.IsDeleted(replica.facts.artifact_id)) forgotten.insert(replica.facts.artifact_id);
  }
  return {forgotten.begin(), forgotten.end()};
}

std::map<std::pair<LocationKind, ReplicaState>, uint64_t> Inventory::CountByState() const {
  std::map<std::pair<LocationKind, ReplicaState>, uint64_t> counts;
  for (const auto& [node_id, held] : held_) {
    for (const auto& [replica_id, replica] : held.replicas) {
      ++counts[{replica.facts.location.kind, replica.facts.state}];
    }
  }
  return counts;
}

}  // namespace tensorcast::global_store
