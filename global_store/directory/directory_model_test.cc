// Random calls against the directory and against a model that is too simple to be wrong: after each step they
// agree, and the directory's indices agree with each other.
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "absl/strings/numbers.h"
#include "base/steady_time.h"
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store {

// Reads the directory's private state.
class DirectoryInvariants {
 public:
  static void Check(const Directory& directory) {
    CheckReplicas(directory);
    CheckGrants(directory);
    CheckKeys(directory);
  }

 private:
  static void CheckReplicas(const Directory& directory) {
    size_t held = 0;
    size_t indexed = 0;
    for (const auto& [node_id, node] : directory.nodes_) {
      for (const auto& [replica_id, replica] : node.replicas) {
        ++held;
        EXPECT_EQ(directory.node_of_replica_.at(replica_id), node_id);
        EXPECT_TRUE(directory.holders_.at(replica.facts.artifact_id).contains({node_id, replica_id}));
      }
    }
    for (const auto& [artifact_id, holders] : directory.holders_) {
      EXPECT_FALSE(holders.empty()) << artifact_id;
      indexed += holders.size();
    }
    EXPECT_EQ(held, indexed);
    EXPECT_EQ(held, directory.node_of_replica_.size());
  }

  static void CheckGrants(const Directory& directory) {
    std::map<std::string, uint32_t> serving;
    for (const auto& [grant_id, grant] : directory.grants_) {
      ++serving[grant.source_node];
      EXPECT_TRUE(directory.artifacts_.contains(grant.artifact_id));
      EXPECT_TRUE(directory.nodes_.contains(grant.receiver_node));
      EXPECT_TRUE(directory.nodes_.at(grant.source_node).replicas.contains(grant.replica_id));
    }
    for (const auto& [node_id, node] : directory.nodes_) EXPECT_EQ(node.serving, serving[node_id]) << node_id;
  }

  static void CheckKeys(const Directory& directory) {
    size_t live = 0;
    for (const auto& [name, key] : directory.keys_) {
      if (key.deleted) continue;
      ++live;
      EXPECT_TRUE(directory.artifacts_.at(key.artifact_id).keys.contains(name));
    }
    size_t of_artifacts = 0;
    for (const auto& [artifact_id, artifact] : directory.artifacts_) {
      of_artifacts += artifact.keys.size();
      EXPECT_FALSE(directory.tombstones_.contains(artifact_id));
    }
    EXPECT_EQ(live, of_artifacts);
    EXPECT_EQ(live, directory.live_keys_);
  }
};

namespace {

struct ModelReplica {
  std::string node;
  std::string artifact;
  bool disk = false;
  bool ready = false;
  bool evicting = false;
  bool corrupt = false;
  bool IsSource() const { return ready && !evicting && !corrupt; }
};

struct ModelOrigin {
  uint64_t bytes = 0;  // what tells it from the one before
  bool gone = false;
  SteadyTime intact_at = SteadyTime::InfinitePast();
};

struct ModelNode {
  uint64_t incarnation = 0;
  SteadyTime heard;
  bool draining = false;
  uint64_t sequence = 0;
};

class Model : public ::testing::TestWithParam<int> {
 protected:
  void Run(int steps) {
    for (int step = 0; step < steps && !HasFailure(); ++step) {
      now_ += absl::Milliseconds(Below(400));
      Step();
      NoteEnded();
      ASSERT_NO_FATAL_FAILURE(Compare()) << "step " << step << ", seed " << GetParam();
    }
  }

 private:
  using Replicas = std::map<std::string, ModelReplica>;

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  std::string SomeNodeId() { return absl::StrCat("n", Below(5)); }
  std::string SomeArtifactId() { return absl::StrCat("a", Below(6)); }
  std::string SomeKey() { return absl::StrCat("k", Below(4)); }
  NodeIdentity Current(const std::string& node) {
    return {node, nodes_.contains(node) ? nodes_[node].incarnation : 1};
  }

  void Step() {
    switch (Below(16)) {
      case 0:
        return RegisterOne();
      case 1:
      case 2:
      case 3:
        return BeatOne();
      case 4:
      case 5:
      case 6:
        return UpdateOne();
      case 7:
        return ReconcileOne();
      case 8:
        return EvictOne();
      case 9:
        return RequestOne();
      case 10:
        return CompleteOne();
      case 11:
        return ChangeArtifact();
      case 12:
        return ChangeKey();
      case 13:
      case 14:
        return CheckOne();
      default:
        return TickOrDrain();
    }
  }

  void DropNode(const std::string& node) {
    nodes_.erase(node);
    std::erase_if(replicas_, [&](const auto& entry) { return entry.second.node == node; });
  }

  // An incarnation after, before, or the same as the last: a start, a copy of the node's folder, a
  // repetition.
  void RegisterOne() {
    const std::string node = SomeNodeId();
    const uint64_t last = incarnations_[node];
    const uint64_t incarnation = last + static_cast<uint64_t>(Below(3)) - static_cast<uint64_t>(last > 0);
    const bool replaced = nodes_.contains(node) && incarnation < nodes_[node].incarnation;
    const auto registered = directory_.RegisterNode(SomeNode(node, incarnation), {}, now_);
    ASSERT_EQ(registered.ok(), incarnation > 0 && !replaced) << registered.status();
    if (!registered.ok()) return;
    if (nodes_.contains(node) && nodes_[node].incarnation < incarnation) DropNode(node);
    nodes_[node].incarnation = incarnations_[node] = incarnation;
    nodes_[node].heard = now_;
  }

  void BeatOne() {
    const std::string node = SomeNodeId();
    std::vector<std::string> active;
    for (const auto& [id, receiver] : grants_) {
      if (receiver == node && Below(2) == 0) active.push_back(id);
    }
    const auto reply = directory_.Heartbeat(Current(node), {}, active, 0, now_);
    ASSERT_EQ(reply.ok(), nodes_.contains(node));
    if (!reply.ok()) return;
    nodes_[node].heard = now_;
    std::set<std::string> forgotten;
    for (const auto& [id, replica] : replicas_) {
      if (replica.node == node && deleted_.contains(replica.artifact)) forgotten.insert(replica.artifact);
    }
    EXPECT_THAT(reply->forgotten_artifacts, ::testing::ElementsAreArray(forgotten));
  }

  ReplicaInfo NewReplica(const std::string& node, ReplicaState state) {
    return {.id = absl::StrCat("r", ++last_replica_),
            .artifact_id = SomeArtifactId(),
            .node_id = node,
            .location = {.kind = Below(4) == 0 ? LocationKind::kDisk : LocationKind::kCpu},
            .state = state};
  }
  void Note(const ReplicaInfo& facts) {
    ModelReplica& replica = replicas_[facts.id];
    replica.node = facts.node_id;
    replica.artifact = facts.artifact_id;
    replica.disk = facts.location.kind == LocationKind::kDisk;
    replica.ready = facts.state == ReplicaState::kReady;
  }
  ReplicaInfo FactsOf(const std::string& id, const ModelReplica& replica, ReplicaState state) {
    return {.id = id,
            .artifact_id = replica.artifact,
            .node_id = replica.node,
            .location = {.kind = replica.disk ? LocationKind::kDisk : LocationKind::kCpu},
            .state = state};
  }
  // The id of some replica of the node, or "".
  std::string SomeReplicaOf(const std::string& node) {
    std::vector<std::string> ids;
    for (const auto& [id, replica] : replicas_) {
      if (replica.node == node) ids.push_back(id);
    }
    return ids.empty() ? "" : ids[static_cast<size_t>(Below(static_cast<int>(ids.size())))];
  }

  void UpdateOne() {
    const std::string node = SomeNodeId();
    if (!nodes_.contains(node)) return;
    const std::string old = SomeReplicaOf(node);
    ReplicaInfo facts;
    if (old.empty() || Below(3) > 0) {
      facts = NewReplica(node, Below(4) == 0 ? ReplicaState::kFilling : ReplicaState::kReady);
      Note(facts);
    } else if (Below(2) == 0) {
      facts = FactsOf(old, replicas_[old], ReplicaState::kReady);
      Note(facts);
    } else {
      facts = FactsOf(old, replicas_[old], Below(2) == 0 ? ReplicaState::kGone : ReplicaState::kFailed);
      replicas_.erase(old);
    }
    nodes_[node].sequence += static_cast<uint64_t>(1 + (Below(10) == 0));
    ASSERT_TRUE(directory_.UpdateReplicas(Current(node), nodes_[node].sequence, {facts}, now_).ok());
  }

  void ReconcileOne() {
    const std::string node = SomeNodeId();
    if (!nodes_.contains(node)) return;
    std::vector<ReplicaInfo> all;
    for (auto it = replicas_.begin(); it != replicas_.end();) {
      if (it->second.node != node) {
        ++it;
      } else if (Below(4) == 0) {
        it = replicas_.erase(it);
      } else {
        all.push_back(
            FactsOf(it->first, it->second, it->second.ready ? ReplicaState::kReady : ReplicaState::kFilling));
        ++it;
      }
    }
    if (Below(2) == 0) {
      all.push_back(NewReplica(node, ReplicaState::kReady));
      Note(all.back());
    }
    const auto unknown = directory_.ReconcileInventory(Current(node), nodes_[node].sequence, all, now_);
    ASSERT_TRUE(unknown.ok());
    std::set<std::string> expected;
    for (const ReplicaInfo& facts : all) {
      const std::string& artifact = facts.artifact_id;
      const bool known = published_.contains(artifact) || deleted_.contains(artifact);
      if (facts.state == ReplicaState::kReady && !known) expected.insert(artifact);
    }
    EXPECT_THAT(*unknown, ::testing::ElementsAreArray(expected));
  }

  bool MayEvict(const std::string& id) {
    const ModelReplica& replica = replicas_[id];
    if (!replica.IsSource() || deleted_.contains(replica.artifact)) return true;
    for (const auto& [other_id, other] : replicas_) {
      const bool stays = other.disk || !nodes_[other.node].draining;
      if (other_id != id && other.artifact == replica.artifact && other.IsSource() && stays) return true;
    }
    for (const auto& [place, origin] : origins_) {
      const bool fresh = !origin.gone && now_ - origin.intact_at <= options_.origin_finding_age;
      if (place.first == replica.artifact && nodes_.contains(place.second) && fresh) return true;
    }
    return false;
  }

  // Looks at some origin that is on record, as its node might find it.
  void CheckOne() {
    if (origins_.empty()) return;
    auto it = std::next(origins_.begin(), Below(static_cast<int>(origins_.size())));
    const auto& [artifact, node] = it->first;
    const bool gone = Below(3) == 0;
    directory_.NoteOrigin(artifact, {.node_id = node, .files = {{"/m", it->second.bytes, 1}}},
                          gone ? OriginFinding::kGone : OriginFinding::kIntact, "", now_);
    if (gone) it->second.gone = true;
    if (!gone) it->second.intact_at = now_;
  }

  void EvictOne() {
    const std::string node = SomeNodeId();
    const std::string id = SomeReplicaOf(node);
    if (id.empty()) return;
    if (Below(4) == 0) {
      ASSERT_TRUE(directory_.WithdrawEviction(Current(node), id).ok());
      replicas_[id].evicting = false;
      return;
    }
    const auto decision = directory_.RequestEviction(Current(node), id, now_);
    ASSERT_TRUE(decision.ok());
    EXPECT_EQ(decision->granted, MayEvict(id)) << decision->reason;
    if (decision->granted) replicas_[id].evicting = true;
  }

  void RequestOne() {
    const std::string receiver = SomeNodeId();
    const std::string artifact = SomeArtifactId();
    if (!nodes_.contains(receiver)) return;
    std::vector<std::string> excluded;
    std::vector<std::string> corrupt;
    bool available = false;
    for (auto& [id, replica] : replicas_) {
      if (replica.artifact == artifact && Below(6) == 0) {
        excluded.push_back(id);
        if (Below(2) == 0) corrupt.push_back(id);
      }
    }
    const bool known = published_.contains(artifact);
    for (const std::string& id : corrupt) replicas_[id].corrupt |= known;
    for (const auto& [id, replica] : replicas_) {
      const bool tried = std::find(excluded.begin(), excluded.end(), id) != excluded.end();
      available |= replica.artifact == artifact && replica.node != receiver && replica.IsSource() && !tried;
    }
    const auto offer = directory_.RequestGrant({.receiver = Current(receiver),
                                                .artifact_id = artifact,
                                                .destination = {},
                                                .excluded_replicas = excluded,
                                                .corrupt_replicas = corrupt},
                                               now_);
    ASSERT_EQ(offer.ok(), known) << offer.status();
    if (!offer.ok()) return;
    ASSERT_EQ(offer->granted.has_value(), available) << offer->no_source_reason;
    if (!available) return;
    const Grant& grant = offer->granted->grant;
    const ModelReplica& source = replicas_.at(grant.replica_id);
    EXPECT_TRUE(source.IsSource());
    EXPECT_EQ(source.artifact, artifact);
    EXPECT_EQ(source.node, grant.source_node);
    EXPECT_NE(source.node, receiver);
    EXPECT_EQ(std::count(excluded.begin(), excluded.end(), grant.replica_id), 0);
    EXPECT_TRUE(grants_.emplace(grant.grant_id, receiver).second);
    replica_of_grant_[grant.grant_id] = grant.replica_id;
  }

  void CompleteOne() {
    if (grants_.empty()) return;
    auto it = std::next(grants_.begin(), Below(static_cast<int>(grants_.size())));
    const bool corrupt = Below(4) == 0;
    ASSERT_TRUE(
        directory_.CompleteGrant(Current(it->second), it->first, GrantEnd::kFailed, corrupt, now_).ok());
    if (corrupt) replicas_.at(replica_of_grant_.at(it->first)).corrupt = true;
  }

  void NoteEnded() {
    for (const EndedGrant& ended : directory_.TakeEndedGrants()) {
      EXPECT_EQ(grants_.erase(ended.grant.grant_id), 1u) << "ended twice, or never given";
    }
    EXPECT_EQ(directory_.counts().active_grants, grants_.size());
  }

  void ChangeArtifact() {
    const std::string artifact = SomeArtifactId();
    if (Below(3) > 0) {
      const std::string node = SomeNodeId();
      std::optional<Origin> origin;
      if (Below(2) == 0) origin = {.node_id = node, .files = {{"/m", static_cast<uint64_t>(Below(2)), 1}}};
      const auto plan = directory_.PreparePublish(
          {.node = Current(node), .artifact = {.artifact_id = artifact}, .origin = origin}, wall_now());
      ASSERT_EQ(plan.ok(), nodes_.contains(node));
      if (!plan.ok()) return;
      EXPECT_EQ(plan->existed, published_.contains(artifact));
      directory_.Apply(plan->facts, now_);
      if (origin.has_value()) {
        directory_.RenewOrigin(artifact, node);
        origins_[{artifact, node}] = {.bytes = origin->files[0].bytes};
      }
      published_.insert(artifact);
      deleted_.erase(artifact);
      return;
    }
    const bool keyed = std::any_of(keys_.begin(), keys_.end(),
                                   [&](const auto& key) { return key.second.first == artifact; });
    const auto facts = directory_.PrepareDeleteArtifact(artifact, wall_now());
    ASSERT_EQ(facts.ok(), published_.contains(artifact) && !keyed) << facts.status();
    if (!facts.ok()) return;
    directory_.Apply(*facts, now_);
    published_.erase(artifact);
    std::erase_if(origins_, [&](const auto& entry) { return entry.first.first == artifact; });
    deleted_.insert(artifact);
  }

  void ChangeKey() {
    const std::string key = SomeKey();
    const uint64_t current = keys_.contains(key) ? keys_[key].second : 0;
    const uint64_t expected = current + static_cast<uint64_t>(Below(4) == 0);
    if (Below(3) > 0) {
      const std::string artifact = SomeArtifactId();
      const auto plan = directory_.PrepareBindKey(key, artifact, expected, wall_now());
      ASSERT_EQ(plan.ok(), published_.contains(artifact) && expected == current) << plan.status();
      if (!plan.ok()) return;
      EXPECT_EQ(plan->key.revision, ++revisions_[key]);
      directory_.Apply(plan->facts, now_);
      keys_[key] = {artifact, plan->key.revision};
      return;
    }
    const auto plan = directory_.PrepareDeleteKey(key, expected, wall_now());
    ASSERT_EQ(plan.ok(), current != 0 && expected == current) << plan.status();
    if (!plan.ok()) return;
    directory_.Apply(plan->facts, now_);
    keys_.erase(key);
  }

  void TickOrDrain() {
    const std::string node = SomeNodeId();
    if (Below(3) == 0) {
      const bool draining = Below(2) == 0;
      ASSERT_EQ(directory_.DrainNode(node, draining).ok(), nodes_.contains(node));
      if (nodes_.contains(node)) nodes_[node].draining = draining;
      return;
    }
    directory_.Tick(now_);
    std::vector<std::string> silent;
    for (const auto& [id, model] : nodes_) {
      if (now_ - model.heard > options_.node_ttl) silent.push_back(id);
    }
    for (const std::string& id : silent) DropNode(id);
  }

  void Compare() {
    DirectoryInvariants::Check(directory_);
    const DirectoryCounts counts = directory_.counts();
    ASSERT_EQ(counts.nodes, nodes_.size());
    ASSERT_EQ(counts.replicas, replicas_.size());
    ASSERT_EQ(counts.artifacts, published_.size());
    ASSERT_EQ(counts.keys, keys_.size());
    for (const auto& [name, bound] : keys_) {
      const auto key = directory_.ResolveKey(name);
      ASSERT_TRUE(key.ok());
      ASSERT_EQ(key->artifact_id, bound.first);
      ASSERT_EQ(key->revision, bound.second);
    }
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
  absl::Time wall_now() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }

  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  CountingSecrets secrets_;
  const DirectoryOptions options_{};
  Directory directory_{options_, &secrets_};

  std::map<std::string, ModelNode> nodes_;
  std::map<std::string, uint64_t> incarnations_;
  Replicas replicas_;
  int last_replica_ = 0;
  std::set<std::string> published_;
  std::set<std::string> deleted_;
  std::map<std::pair<std::string, std::string>, ModelOrigin> origins_;  // by artifact and node
  std::map<std::string, std::pair<std::string, uint64_t>> keys_;        // artifact, revision
  std::map<std::string, uint64_t> revisions_;
  std::map<std::string, std::string> grants_;  // grant id -> receiver
  std::map<std::string, std::string> replica_of_grant_;
};

constexpr int kSeeds = 10;

// TENSORCAST_MODEL_STEPS says how many for all seeds together (`make model`: a million, half a minute).
TEST_P(Model, AgreesWithTheDirectoryAfterEachStep) {
  int steps = 30'000;
  if (const char* wanted = std::getenv("TENSORCAST_MODEL_STEPS"); wanted != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(wanted, &steps)) << "TENSORCAST_MODEL_STEPS is no number: " << wanted;
  }
  Run(steps / kSeeds);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model, ::testing::Range(1, kSeeds + 1));

}  // namespace
}  // namespace tensorcast::global_store
