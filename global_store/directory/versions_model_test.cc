// Versions of keys, the differences between them, and nodes that follow the keys: random publications, gets,
// evictions, rollbacks and deletions, differences that are made wrong, and crashes of nodes and of the store.
//
// A node here acts as a daemon as far as versions matter: it makes contents along the path that it is told,
// trusts only the target's digest, evicts by consent, and reports. In every state that is reached, no ready
// replica is wrong, and a bound key is out of reach only if a crash took its last copy.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::versions_model_test {
namespace {

constexpr uint32_t kDifferenceVersions = 4;
constexpr uint64_t kImageBytes = 100;
constexpr int kWrong = -1;  // not the bytes of any version

// What the metadata store keeps: the newest record of each artifact and key, tombstones for a while.
class Durable {
 public:
  void Write(const DurableFacts& facts) {
    for (const ArtifactRecord& record : facts.artifacts) {
      artifacts_[record.artifact_id] = record;
      if (record.deleted) deleted_.push_back(record.artifact_id);
    }
    for (; deleted_.size() > kTombstones; deleted_.pop_front()) artifacts_.erase(deleted_.front());
    for (const KeyRecord& record : facts.keys) keys_[record.name] = record;
  }
  DurableFacts Read() const {
    DurableFacts facts;
    for (const auto& [id, record] : artifacts_) facts.artifacts.push_back(record);
    for (const auto& [name, record] : keys_) facts.keys.push_back(record);
    return facts;
  }

 private:
  static constexpr size_t kTombstones = 64;
  std::map<std::string, ArtifactRecord> artifacts_;
  std::map<std::string, KeyRecord> keys_;
  std::deque<std::string> deleted_;  // the oldest first
};

struct Held {
  std::string artifact;
  bool disk = false;
  bool evicting = false;  // by consent; it proves nothing any more
};

struct Follower {
  uint64_t incarnation = 1;
  uint64_t sequence = 0;
  bool up = true;
  std::map<std::string, Held> replicas;  // by id
  std::set<std::string> wrong;           // differences that made wrong bytes here
};

struct Edge {
  std::string base;
  std::string target;
  bool made_wrong = false;
};

// How often the random steps came to what they are about.
struct Reach {
  int made_by_path = 0;
  int folded = 0;
  int wrong_seen = 0;
  int evicted = 0;
};

class VersionsModel {
 public:
  VersionsModel(int seed, Reach* reach) : random_(static_cast<uint64_t>(seed)), reach_(*reach) {}

  void Run(int steps) {
    for (int i = 0; i < 4; ++i) nodes_[absl::StrCat("n", i)];
    StartStore();
    for (int step = 1; step <= steps && !::testing::Test::HasFailure(); ++step) {
      now_ += absl::Milliseconds(Below(300));
      Step();
      if (step % 300 == 0) Settle();
      ASSERT_NO_FATAL_FAILURE(Check()) << "step " << step;
    }
  }

 private:
  using Node = std::map<std::string, Follower>::value_type;

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  Node& SomeNodeOfAll() { return *std::next(nodes_.begin(), Below(static_cast<int>(nodes_.size()))); }
  std::string SomeKey() { return absl::StrCat("k", Below(3)); }
  NodeIdentity Id(const Node& node) const { return {node.first, node.second.incarnation}; }
  absl::Time wall_now() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }

  void Step() {
    switch (Below(20)) {
      case 0:
      case 1:
      case 2:
        return Publish(SomeNodeOfAll(), SomeKey());
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
        return GetOne();
      case 8:
      case 9:
      case 10:
        return EvictOne(SomeNodeOfAll());
      case 11:
        return RollBack(SomeKey());
      case 12:
        return Below(4) == 0 ? DeleteKey(SomeKey()) : DeleteVersion();
      case 13:
        return Below(2) == 0 ? Crash(SomeNodeOfAll()) : Pack(SomeNodeOfAll());
      case 14:
        if (Below(4) == 0) StartStore();
        return;
      case 15:
        return Release();
      default: {
        Node& node = SomeNodeOfAll();
        node.second.up = true;
        Beat(node);
        directory_->Tick(now_);
      }
    }
  }

  // The store, again where it ran: from what is durable alone.
  void StartStore() {
    directory_ = std::make_unique<Directory>(options_, &secrets_);
    directory_->Load(durable_.Read(), now_);
  }
  // A crash of the store comes before the commit, or between it and its application.
  bool Commit(const DurableFacts& facts) {
    const int crash = settling_ ? 2 : Below(60);
    if (crash == 0) {
      StartStore();
      return false;
    }
    durable_.Write(facts);
    if (crash == 1) {
      StartStore();
    } else {
      directory_->Apply(facts, now_);
    }
    return true;
  }

  std::vector<ReplicaInfo> InventoryOf(const Node& node) const {
    std::vector<ReplicaInfo> replicas;
    for (const auto& [id, held] : node.second.replicas) replicas.push_back(InfoOf(id, held));
    return replicas;
  }
  static ReplicaInfo InfoOf(const std::string& id, const Held& held) {
    return SomeReplica(id, held.artifact, held.disk ? LocationKind::kDisk : LocationKind::kCpu,
                       held.evicting ? ReplicaState::kDraining : ReplicaState::kReady);
  }
  void Register(Node& node) {
    ASSERT_TRUE(directory_->RegisterNode(SomeNode(node.first, node.second.incarnation), {}, now_).ok());
    Reconcile(node);
  }
  void Reconcile(Node& node) {
    const auto unknown =
        directory_->ReconcileInventory(Id(node), node.second.sequence, InventoryOf(node), now_);
    ASSERT_TRUE(unknown.ok()) << unknown.status();
    // Those of a publication that was not committed: its put failed.
    for (const std::string& artifact : *unknown) Drop(node, artifact);
  }
  void Beat(Node& node) {
    FinishEvictions(node);
    auto reply = directory_->Heartbeat(Id(node), {}, {}, node.second.sequence, now_);
    if (!reply.ok()) {
      ASSERT_NO_FATAL_FAILURE(Register(node));
      reply = directory_->Heartbeat(Id(node), {}, {}, node.second.sequence, now_);
    }
    ASSERT_TRUE(reply.ok()) << reply.status();
    for (const std::string& artifact : reply->forgotten_artifacts) Drop(node, artifact);
    if (reply->inventory_wanted) Reconcile(node);
  }
  // Some reports are lost: the sequence tells the store.
  void Report(Node& node, const ReplicaInfo& replica) {
    ++node.second.sequence;
    if (Below(12) == 0) return;
    if (!directory_->UpdateReplicas(Id(node), node.second.sequence, {replica}, now_).ok()) Register(node);
  }
  std::string Add(Node& node, const std::string& artifact) {
    const std::string id = absl::StrCat("r", ++last_replica_);
    node.second.replicas[id] = {.artifact = artifact};
    return id;
  }
  void Erase(Node& node, const std::string& id) {
    ReplicaInfo gone = InfoOf(id, node.second.replicas.at(id));
    gone.state = ReplicaState::kGone;
    node.second.replicas.erase(id);
    Report(node, gone);
  }
  void Drop(Node& node, const std::string& artifact) {
    std::vector<std::string> ids;
    for (const auto& [id, held] : node.second.replicas) {
      if (held.artifact == artifact) ids.push_back(id);
    }
    for (const std::string& id : ids) Erase(node, id);
  }
  void FinishEvictions(Node& node) {
    std::vector<std::string> ids;
    for (const auto& [id, held] : node.second.replicas) {
      if (held.evicting) ids.push_back(id);
    }
    for (const std::string& id : ids) Erase(node, id);
  }

  static bool Has(const Node& node, const std::string& artifact) {
    return std::ranges::any_of(node.second.replicas, [&](const auto& entry) {
      return entry.second.artifact == artifact && !entry.second.evicting;
    });
  }
  bool AnyNodeHas(const std::string& artifact, bool up_only) const {
    return std::ranges::any_of(
        nodes_, [&](const Node& node) { return (node.second.up || !up_only) && Has(node, artifact); });
  }

  // The next version, with a difference from the current one where the node has that. One of six is wrong.
  void Publish(Node& node, const std::string& key) {
    if (!node.second.up) return;
    const std::string target = absl::StrCat("v", ++last_version_);
    PublishRequest request{
        .node = Id(node), .artifact = {.artifact_id = target, .image_bytes = kImageBytes}, .key = key};
    const std::string replica = Add(node, target);
    request.replica = InfoOf(replica, node.second.replicas.at(replica));
    const auto current = directory_->catalog().ResolveKey(key);
    std::optional<Edge> edge;
    if (current.ok() && Has(node, current->artifact_id) && Below(8) > 0) {
      edge = {.base = current->artifact_id, .target = target, .made_wrong = Below(6) == 0};
      request.difference = {.artifact_id = absl::StrCat("d", last_version_),
                            .kind = ArtifactKind::kDifference,
                            .image_bytes = static_cast<uint64_t>(1 + Below(20)),
                            .base_id = edge->base,
                            .target_id = target};
      const std::string of_difference = Add(node, request.difference->artifact_id);
      request.difference_replica = InfoOf(of_difference, node.second.replicas.at(of_difference));
    }
    const auto plan = directory_->PreparePublish(request, wall_now());
    if (!plan.ok() || !Commit(plan->facts)) {
      Drop(node, target);
      if (edge.has_value()) Drop(node, request.difference->artifact_id);
      return;
    }
    contents_[target] = last_version_;
    for (const auto& added : {request.replica, request.difference_replica}) {
      if (added.has_value()) directory_->AddPublishedReplica(Id(node), *added);
      if (added.has_value()) Report(node, *added);
    }
    if (edge.has_value()) {
      edges_[request.difference->artifact_id] = *edge;
      must_stay_.insert(request.difference->artifact_id);
    }
    NoteBound(key, target);
  }

  void RollBack(const std::string& key) {
    const auto record = directory_->catalog().ResolveKey(key);
    if (!record.ok() || record->earlier.empty()) return;
    const auto& version =
        record->earlier[static_cast<size_t>(Below(static_cast<int>(record->earlier.size())))];
    const auto plan =
        directory_->catalog().PrepareBindKey({.key = key, .artifact_id = version.artifact_id}, wall_now());
    ASSERT_TRUE(plan.ok()) << plan.status() << ": a version that is kept can be bound";
    if (Commit(plan->facts)) NoteBound(key, version.artifact_id);
  }
  void NoteBound(const std::string& key, const std::string& artifact) {
    std::vector<std::string>& ends = ends_[key];
    std::erase(ends, artifact);
    ends.insert(ends.begin(), artifact);
    if (ends.size() > kDifferenceVersions) ends.resize(kDifferenceVersions);
  }

  void DeleteKey(const std::string& key) {
    const auto plan = directory_->catalog().PrepareDeleteKey(key, std::nullopt, wall_now());
    if (plan.ok() && Commit(plan->facts)) ends_.erase(key);
  }
  void DeleteVersion() {
    if (last_version_ == 0) return;
    const std::string artifact =
        absl::StrCat("v", std::max(1, last_version_ - Below(2 * static_cast<int>(kDifferenceVersions))));
    const Catalog::Artifact* known = directory_->catalog().Find(artifact);
    if (known == nullptr) return;
    const std::set<std::string> kept_by = known->kept_by;
    const auto facts = directory_->catalog().PrepareDeleteArtifact(artifact, wall_now());
    if (!facts.ok() || !Commit(*facts)) return;
    for (const std::string& key : kept_by) std::erase(ends_[key], artifact);
    std::erase_if(must_stay_, [&](const std::string& id) {
      return edges_.at(id).base == artifact || edges_.at(id).target == artifact;
    });
  }

  void GetOne() {
    Node& node = SomeNodeOfAll();
    if (node.second.up) Get(node, SomeKey());
  }

  // False: the version cannot be had.
  bool Get(Node& node, const std::string& key) {
    const auto record = directory_->catalog().ResolveKey(key);
    if (!record.ok() || Has(node, record->artifact_id)) return true;
    const std::string& target = record->artifact_id;
    std::optional<int> made = FollowPath(node, target);
    if (!made.has_value() && TakeWhole(node, target)) made = contents_.at(target);
    if (!made.has_value()) return false;
    EXPECT_EQ(*made, contents_.at(target)) << "wrong bytes of " << target << " are ready on " << node.first;
    const std::string id = Add(node, target);
    Report(node, InfoOf(id, node.second.replicas.at(id)));
    return true;
  }

  // What the differences make of a version that is here, where that is right; nullopt: it has to come whole.
  std::optional<int> FollowPath(Node& node, const std::string& target) {
    std::set<std::string, std::less<>> bases;
    for (const auto& [id, held] : node.second.replicas) {
      if (!held.disk && !held.evicting && contents_.contains(held.artifact)) bases.insert(held.artifact);
    }
    const std::vector<DifferenceEdge> path = directory_->DifferencesTo(target, bases);
    if (path.empty()) return std::nullopt;
    EXPECT_TRUE(bases.contains(path.front().base_id));
    EXPECT_EQ(path.back().target_id, target);
    if (std::ranges::any_of(path,
                            [&](const auto& edge) { return node.second.wrong.contains(edge.artifact_id); })) {
      return std::nullopt;
    }
    std::string reached = path.front().base_id;
    int content = contents_.at(reached);
    for (const DifferenceEdge& edge : path) {
      EXPECT_EQ(edge.base_id, reached);
      reached = edge.target_id;
      if (!Has(node, edge.artifact_id)) {
        if (!TakeWhole(node, edge.artifact_id)) return std::nullopt;
        const std::string id = Add(node, edge.artifact_id);
        Report(node, InfoOf(id, node.second.replicas.at(id)));
      }
      const Edge& known = edges_.at(edge.artifact_id);
      const bool right = !known.made_wrong && content == contents_.at(known.base);
      content = right ? contents_.at(known.target) : kWrong;
    }
    if (content == contents_.at(target)) {
      ++reach_.made_by_path;
      if (path.size() > 1) ++reach_.folded;
      return content;
    }
    ++reach_.wrong_seen;
    for (const DifferenceEdge& edge : path) node.second.wrong.insert(edge.artifact_id);
    if (path.size() == 1) ReportWrong(node, path.front().artifact_id);
    return std::nullopt;
  }
  void ReportWrong(const Node& node, const std::string& difference) {
    std::set<std::string>& reporters = reporters_[difference];
    reporters.insert(node.first);
    if (reporters.size() < 2) return;
    const auto facts = directory_->catalog().PrepareDeleteDifference(difference, wall_now());
    if (!facts.ok() || !Commit(*facts)) return;
    must_stay_.erase(difference);
  }

  // From sources that the store grants; those that fail are excluded.
  bool TakeWhole(Node& node, const std::string& artifact) {
    std::vector<std::string> excluded;
    for (int tries = 0; tries < 8; ++tries) {
      const auto offer = directory_->transfers().RequestGrant({.receiver = Id(node),
                                                               .artifact_id = artifact,
                                                               .destination = {.kind = LocationKind::kCpu},
                                                               .excluded_replicas = excluded,
                                                               .corrupt_replicas = {}},
                                                              now_);
      if (!offer.ok() || offer->granted.empty()) return false;
      const Grant grant = offer->granted.front().grant;
      const Node& source = *nodes_.find(grant.source_node);
      const bool gives = source.second.up && source.second.replicas.contains(grant.replica_id) &&
                         !source.second.replicas.at(grant.replica_id).evicting;
      EXPECT_TRUE(directory_->transfers()
                      .CompleteGrant(Id(node), grant.grant_id,
                                     gives ? GrantEnd::kSucceeded : GrantEnd::kFailed,
                                     /*source_corrupt=*/false, now_)
                      .ok());
      directory_->transfers().grants().TakeEnded();
      if (gives) return true;
      excluded.push_back(absl::StrCat(grant.source_node, "/", grant.replica_id));
    }
    return false;
  }

  void EvictOne(Node& node) {
    if (!node.second.up || node.second.replicas.empty()) return;
    const auto chosen =
        std::next(node.second.replicas.begin(), Below(static_cast<int>(node.second.replicas.size())));
    const std::string id = chosen->first;
    Proofs proofs;
    for (int round = 0; round < 8; ++round) {
      const auto decision = directory_->evictions().Request(Id(node), id, now_, proofs);
      if (!decision.ok()) return;  // the store does not know it yet
      if (decision->granted) {
        node.second.replicas.at(id).evicting = true;
        ++reach_.evicted;
        if (Below(2) == 0) FinishEvictions(node);
        return;
      }
      for (const CopyToProve& copy : decision->to_prove.copies) {
        const Node& other = *nodes_.find(copy.replica.node_id);
        const auto held = other.second.replicas.find(copy.replica.replica_id);
        const bool proven = other.second.up && held != other.second.replicas.end() && !held->second.evicting;
        (proven ? proofs.proven : proofs.unproven).push_back(copy.replica);
      }
      if (!decision->to_prove.copies.empty()) continue;
      if (!decision->release_first) return;
      if (!Commit(directory_->evictions().PrepareReleaseOf({node.first, id}, proofs, wall_now()))) return;
    }
  }

  // To the disk, which a crash leaves.
  void Pack(Node& node) {
    if (!node.second.up || node.second.replicas.empty()) return;
    const auto chosen =
        std::next(node.second.replicas.begin(), Below(static_cast<int>(node.second.replicas.size())));
    if (!contents_.contains(chosen->second.artifact) || chosen->second.evicting) return;
    const std::string id = Add(node, chosen->second.artifact);
    node.second.replicas.at(id).disk = true;
    Report(node, InfoOf(id, node.second.replicas.at(id)));
  }
  void Crash(Node& node) {
    std::set<std::string> in_memory;
    for (const auto& [id, held] : node.second.replicas) {
      if (!held.disk) in_memory.insert(held.artifact);
    }
    std::erase_if(node.second.replicas, [](const auto& entry) { return !entry.second.disk; });
    for (const std::string& artifact : in_memory) {
      if (!AnyNodeHas(artifact, /*up_only=*/false)) lost_.insert(artifact);
    }
    ++node.second.incarnation;
    node.second.sequence = 0;
    node.second.up = Below(2) == 0;
    if (node.second.up) Register(node);
  }

  void Release() {
    if (directory_->HasReleases(now_)) Commit(directory_->PrepareReleases(now_, wall_now()));
  }

  // All that is under way ends; then every key can be had everywhere.
  void Settle() {
    settling_ = true;
    for (Node& node : nodes_) {
      node.second.up = true;
      ASSERT_NO_FATAL_FAILURE(Register(node));
      Beat(node);
    }
    for (const auto& [key, ends] : ends_) {
      for (Node& node : nodes_) {
        const auto record = directory_->catalog().ResolveKey(key);
        ASSERT_TRUE(record.ok()) << record.status();
        if (lost_.contains(record->artifact_id)) continue;
        ASSERT_TRUE(Get(node, key)) << "key " << key << " at " << node.first << ": " << record->artifact_id;
        Beat(node);
      }
    }
    settling_ = false;
  }

  bool IsEndOfAKey(const std::string& artifact) const {
    return std::ranges::any_of(ends_,
                               [&](const auto& key) { return std::ranges::count(key.second, artifact) > 0; });
  }

  void Check() {
    const Catalog& catalog = directory_->catalog();
    for (const auto& [key, ends] : ends_) {
      const auto record = catalog.ResolveKey(key);
      ASSERT_TRUE(record.ok()) << record.status();
      ASSERT_EQ(record->artifact_id, ends.front());
      if (lost_.contains(record->artifact_id)) continue;
      ASSERT_TRUE(AnyNodeHas(record->artifact_id, /*up_only=*/false))
          << "the last copy of " << record->artifact_id << ", which key " << key << " names, is gone";
    }
    std::erase_if(must_stay_, [this](const std::string& id) {
      return !IsEndOfAKey(edges_.at(id).base) || !IsEndOfAKey(edges_.at(id).target);
    });
    for (const std::string& id : must_stay_) {
      const Edge& edge = edges_.at(id);
      const Catalog::Artifact* difference = catalog.Find(id);
      ASSERT_NE(difference, nullptr) << id << " from " << edge.base << " to " << edge.target;
      ASSERT_TRUE(difference->kept_difference);
    }
  }

  std::mt19937_64 random_;
  Reach& reach_;
  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  CountingSecrets secrets_;
  const DirectoryOptions options_{
      .retention = {.keep = 2, .by_prefix = {{"k1", 3}}, .difference_versions = kDifferenceVersions}};
  Durable durable_;
  std::unique_ptr<Directory> directory_;
  std::map<std::string, Follower> nodes_;
  std::map<std::string, int> contents_;                   // right bytes, by version
  std::map<std::string, Edge> edges_;                     // by difference
  std::map<std::string, std::vector<std::string>> ends_;  // last versions, the newest first, by key
  // Differences of which both ends were among the last versions of a key all the time.
  std::set<std::string> must_stay_;
  std::map<std::string, std::set<std::string>> reporters_;
  std::set<std::string> lost_;  // versions of which a crash took the last copy
  bool settling_ = false;       // the store does not crash meanwhile
  int last_version_ = 0;
  int last_replica_ = 0;
};

constexpr int kSeeds = 10;

// TENSORCAST_MODEL_STEPS says how many for all seeds together, as for the model of the directory.
TEST(VersionsModel, RandomFaults_BoundKeysCanBeHadWithRightBytes) {
  int steps = 30'000;
  if (const char* wanted = std::getenv("TENSORCAST_MODEL_STEPS"); wanted != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(wanted, &steps)) << "TENSORCAST_MODEL_STEPS is not a number: " << wanted;
  }
  Reach reach;
  for (int seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    VersionsModel(seed, &reach).Run(steps / kSeeds);
  }
  if (steps < 30'000) return;
  EXPECT_GT(reach.made_by_path, 100);
  EXPECT_GT(reach.folded, 5);
  EXPECT_GT(reach.wrong_seen, 5);
  EXPECT_GT(reach.evicted, 500);
}

}  // namespace
}  // namespace tensorcast::global_store::versions_model_test
