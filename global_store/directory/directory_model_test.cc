// Random calls against the directory and against a model that is too simple to be wrong: after each step they
// agree, and the directory's indices agree with each other.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/steady_time.h"
#include "core/replica/inventory_digest.h"
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store {

// Reads the directory's private state.
class DirectoryInvariants {
 public:
  static void Check(const Directory& directory) {
    CheckReplicas(directory);
    CheckDigests(directory);
    CheckGrants(directory);
    CheckKeys(directory);
    CheckDifferences(directory);
    CheckTasks(directory);
  }

  // What the node was just told to wait for leads, by waits and grants of others and without the node, to one
  // that neither waits nor pulls, or to a replica that is whole: no chain of waits is closed.
  static void CheckWait(const Directory& directory, const std::string& artifact, const std::string& node,
                        SteadyTime now) {
    const Waits::Waiting* told = directory.transfers_.waits_.Find(artifact, node, now);
    if (told == nullptr || told->reports) return;
    std::set<std::string> seen = {node};
    std::vector<std::string> next(told->nodes.begin(), told->nodes.end());
    while (!next.empty()) {
      const std::string at = next.back();
      next.pop_back();
      if (!seen.insert(at).second || directory.membership_.Find(at) == nullptr) continue;
      // It keeps such a replica or evicts it in a moment: the wait is short, and the next one is judged anew.
      const bool may_evict = std::ranges::any_of(directory.inventory_.ReplicasOf(at), [&](const auto& held) {
        return held.second.facts.artifact_id == artifact && held.second.evicting && !held.second.IsPartial();
      });
      if (may_evict) return;
      bool pulls = false;
      for (const Grant* grant : directory.transfers_.grants_.Of(at).receiving) {
        if (grant->artifact_id != artifact) continue;
        pulls = true;
        const HeldReplica& source = *directory.inventory_.Find(grant->source_node, grant->replica_id);
        if (source.IsSource()) return;
        if (!source.IsPartial()) next.push_back(grant->source_node);
      }
      const Waits::Waiting* waits = directory.transfers_.waits_.Find(artifact, at, now);
      if (pulls && waits == nullptr) continue;
      if (waits == nullptr || waits->reports) return;
      next.insert(next.end(), waits->nodes.begin(), waits->nodes.end());
    }
    std::string way;
    for (const std::string& at : seen) {
      const Waits::Waiting* waits = directory.transfers_.waits_.Find(artifact, at, now);
      absl::StrAppend(&way, "; ", at, " waits for ",
                      waits == nullptr ? "nothing" : absl::StrJoin(waits->nodes, ","));
      for (const Grant* grant : directory.transfers_.grants_.Of(at).receiving) {
        if (grant->artifact_id == artifact) absl::StrAppend(&way, " and pulls from ", grant->source_node);
      }
      for (const auto& [id, held] : directory.inventory_.ReplicasOf(at)) {
        if (held.facts.artifact_id != artifact) continue;
        absl::StrAppend(&way, " and has ", id,
                        held.IsSource()    ? " (source)"
                        : held.IsFilling() ? " (fills)"
                                           : "",
                        held.evicting ? " (evicting)" : "");
      }
    }
    ADD_FAILURE() << "the waits of " << node << " for " << artifact << " are a circle" << way;
  }

 private:
  static void CheckDigests(const Directory& directory) {
    for (const auto& [node_id, held] : directory.inventory_.held_) {
      uint64_t digest = 0;
      for (const auto& [replica_id, replica] : held.replicas) digest += InventoryDigestOf(replica.facts);
      EXPECT_EQ(held.digest, digest) << "of node " << node_id;
    }
  }

  static void CheckTasks(const Directory& directory) {
    std::map<std::string, std::set<std::pair<absl::Time, std::string>>> open;
    std::map<std::string, std::string> places;
    std::set<std::string> to_settle;
    for (const auto& [place, task] : directory.tasks_.tasks_) {
      const TaskRecord& record = task.record;
      EXPECT_EQ(place, TaskKeyOf(record));
      EXPECT_TRUE(directory.catalog_.artifacts_.contains(record.artifact_id)) << "it goes with its artifact";
      EXPECT_TRUE(places.emplace(record.task_id, place).second);
      if (record.state == TaskState::kOpen) open[record.node_id].emplace(record.created, place);
      if (task.ended.has_value()) to_settle.insert(place);
      EXPECT_FALSE(task.handed_out &&
                   (task.ended.has_value() || !directory.membership_.nodes_.contains(record.node_id)));
    }
    EXPECT_EQ((std::map<std::string, std::string>(directory.tasks_.place_of_.begin(),
                                                  directory.tasks_.place_of_.end())),
              places);
    EXPECT_EQ(directory.tasks_.to_settle_, to_settle);
    EXPECT_EQ(directory.tasks_.open_.size(), open.size());
    for (const auto& [node_id, tasks] : open) EXPECT_EQ(directory.tasks_.open_.at(node_id), tasks);
  }

  static void CheckReplicas(const Directory& directory) {
    size_t held = 0;
    size_t indexed = 0;
    EXPECT_EQ(directory.inventory_.held_.size(), directory.membership_.nodes_.size());
    for (const auto& [node_id, node] : directory.inventory_.held_) {
      EXPECT_EQ(node.node, directory.membership_.Find(node_id));
      for (const auto& [replica_id, replica] : node.replicas) {
        ++held;
        EXPECT_TRUE(
            directory.inventory_.holders_.at(replica.facts.artifact_id).contains({node_id, replica_id}));
      }
    }
    for (const auto& [artifact_id, holders] : directory.inventory_.holders_) {
      EXPECT_FALSE(holders.empty()) << artifact_id;
      indexed += holders.size();
    }
    EXPECT_EQ(held, indexed);
    EXPECT_EQ(held, directory.inventory_.replicas_);
    CheckSources(directory);
  }

  static void CheckSources(const Directory& directory) {
    using Named = std::set<std::pair<std::string, std::string>>;  // scope, replica
    Named ready;
    Named filling;
    std::map<std::string, std::set<std::string>> nodes_of_host;
    for (const auto& [node_id, node] : directory.membership_.nodes_) {
      if (!node.facts.host_id.empty()) nodes_of_host[node.facts.host_id].insert(node_id);
      for (const auto& [replica_id, replica] : directory.inventory_.ReplicasOf(node_id)) {
        for (const std::string& scope : SourceIndex::ScopesOf(replica.facts.artifact_id, node.end)) {
          if (replica.IsSource()) ready.emplace(scope, replica_id);
          if (replica.ServesParts()) filling.emplace(scope, replica_id);
        }
      }
    }
    Named indexed_ready;
    Named indexed_filling;
    for (const auto& [scope, sources] : directory.inventory_.sources_.scopes_) {
      EXPECT_FALSE(sources.ready.empty() && sources.filling.empty()) << scope;
      for (const auto& [key, source] : sources.ready) indexed_ready.emplace(scope, source.replica->facts.id);
      for (const auto& [key, source] : sources.filling) {
        indexed_filling.emplace(scope, source.replica->facts.id);
      }
    }
    EXPECT_EQ(indexed_ready, ready);
    EXPECT_EQ(indexed_filling, filling);
    EXPECT_EQ((std::map<std::string, std::set<std::string>>(directory.membership_.nodes_of_host_.begin(),
                                                            directory.membership_.nodes_of_host_.end())),
              nodes_of_host);
    std::map<std::string, std::string> live_names;
    for (const auto& [node_id, node] : directory.membership_.nodes_) live_names[node.facts.name] = node_id;
    EXPECT_EQ((std::map<std::string, std::string>(directory.membership_.live_names_.begin(),
                                                  directory.membership_.live_names_.end())),
              live_names);
    std::map<std::string, std::string> nodes_of_names;
    for (const auto& [node_id, name] : directory.membership_.names_of_nodes_) nodes_of_names[name] = node_id;
    EXPECT_EQ((std::map<std::string, std::string>(directory.membership_.nodes_of_names_.begin(),
                                                  directory.membership_.nodes_of_names_.end())),
              nodes_of_names);
  }

  static void CheckGrants(const Directory& directory) {
    using GrantIds = std::map<std::string, std::set<std::string>>;
    GrantIds serving;
    std::map<std::string, std::map<std::string, uint32_t>> uploads;
    GrantIds receiving;
    std::set<std::pair<std::string, uint32_t>> shares;
    std::map<std::pair<std::string, std::string>, std::set<std::string>> into;
    for (const auto& [grant_id, grant] : directory.transfers_.grants_.grants_) {
      serving[grant.source_node].insert(grant_id);
      uploads[grant.source_node][grant.artifact_id] += grant.slot_parts;
      receiving[grant.receiver_node].insert(grant_id);
      if (!grant.into_zone.empty()) into[{grant.into_zone, grant.artifact_id}].insert(grant_id);
      EXPECT_TRUE(shares.emplace(grant.replica_id, grant.share).second) << "two receivers have one share";
      EXPECT_TRUE(directory.catalog_.artifacts_.contains(grant.artifact_id));
      EXPECT_TRUE(directory.membership_.nodes_.contains(grant.receiver_node));
      EXPECT_TRUE(directory.inventory_.Find(grant.source_node, grant.replica_id) != nullptr);
    }
    const auto ids = [](const std::vector<const Grant*>& grants) {
      std::set<std::string> found;
      for (const Grant* grant : grants) EXPECT_TRUE(found.insert(grant->grant_id).second);
      return found;
    };
    size_t zones_and_artifacts = 0;
    for (const auto& [zone, artifacts] : directory.transfers_.grants_.into_) {
      for (const auto& [artifact_id, grants] : artifacts) {
        EXPECT_EQ(ids(grants), (into[{zone, artifact_id}])) << zone;
        ++zones_and_artifacts;
      }
    }
    EXPECT_EQ(zones_and_artifacts, into.size());
    for (const auto& [node_id, node] : directory.transfers_.grants_.of_node_) {
      EXPECT_TRUE(directory.membership_.nodes_.contains(node_id));
      EXPECT_EQ(ids(node.serving), serving[node_id]) << node_id;
      EXPECT_EQ((std::map<std::string, uint32_t>(node.uploads.begin(), node.uploads.end())), uploads[node_id])
          << node_id;
      EXPECT_EQ(ids(node.receiving), receiving[node_id]) << node_id;
    }
    for (const auto& [node_id, grants] : serving) {
      EXPECT_TRUE(grants.empty() || directory.transfers_.grants_.of_node_.contains(node_id)) << node_id;
    }
  }

  static void CheckKeys(const Directory& directory) {
    size_t live = 0;
    size_t earlier = 0;
    for (const auto& [name, key] : directory.catalog_.keys_) {
      if (key.deleted) continue;
      ++live;
      EXPECT_TRUE(directory.catalog_.artifacts_.at(key.artifact_id).keys.contains(name));
      EXPECT_LT(key.earlier.size(), directory.catalog_.KeepOf(key));
      for (const KeyVersion& version : key.earlier) {
        ++earlier;
        EXPECT_TRUE(directory.catalog_.artifacts_.at(version.artifact_id).kept_by.contains(name));
      }
    }
    size_t of_artifacts = 0;
    size_t kept_by = 0;
    std::set<std::string> released;
    for (const auto& [artifact_id, artifact] : directory.catalog_.artifacts_) {
      of_artifacts += artifact.keys.size();
      kept_by += artifact.kept_by.size();
      if (artifact.IsReleased()) released.insert(artifact_id);
      EXPECT_FALSE(directory.catalog_.tombstones_.contains(artifact_id));
    }
    EXPECT_EQ(live, of_artifacts);
    EXPECT_EQ(live, directory.catalog_.live_keys_);
    EXPECT_EQ(earlier, kept_by);
    EXPECT_EQ(
        (std::set<std::string>(directory.catalog_.released_.begin(), directory.catalog_.released_.end())),
        released);
  }

  static void CheckDifferences(const Directory& directory) {
    const Catalog& catalog = directory.catalog_;
    const Differences& differences = catalog.differences_;
    std::map<std::string, uint64_t> holds;
    for (const auto& [name, key] : catalog.keys_) {
      if (key.deleted) continue;
      const std::vector<std::string> ends = catalog.EndsOf(key);
      EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size(), ends.size()) << name;
      for (const std::string& end : ends) ++holds[end];
      // It can be had without a difference.
      EXPECT_EQ(catalog.artifacts_.at(key.artifact_id).record.kind, ArtifactKind::kTensors);
    }
    std::map<std::string, DifferenceEdge> edges;
    std::map<std::string, std::set<std::string>> of_ends;
    for (const auto& [artifact_id, artifact] : catalog.artifacts_) {
      const ArtifactRecord& record = artifact.record;
      if (!record.versioned) ++holds[artifact_id];
      if (record.kind != ArtifactKind::kDifference) continue;
      edges[artifact_id] = {artifact_id, record.base_id, record.target_id, record.image_bytes};
      for (const std::string& end : {record.base_id, record.target_id}) {
        of_ends[end].insert(artifact_id);
        // It is there, or went as a version of which no node had a copy; what a person deletes takes its
        // differences along.
        const auto tombstone = catalog.tombstones_.find(end);
        EXPECT_TRUE(catalog.artifacts_.contains(end) ||
                    (tombstone != catalog.tombstones_.end() && tombstone->second.versioned))
            << end << " of " << artifact_id;
      }
    }
    using Holds = std::map<std::string, uint64_t>;
    EXPECT_EQ(Holds(differences.holds_.begin(), differences.holds_.end()), holds);
    EXPECT_EQ((std::map<std::string, DifferenceEdge>(differences.edges_.begin(), differences.edges_.end())),
              edges);
    EXPECT_EQ((std::map<std::string, std::set<std::string>>(differences.of_ends_.begin(),
                                                            differences.of_ends_.end())),
              of_ends);
    uint64_t kept = 0;
    uint64_t bytes = 0;
    for (const auto& [artifact_id, artifact] : catalog.artifacts_) {
      const auto edge = edges.find(artifact_id);
      const bool both_held = edge != edges.end() && holds.contains(edge->second.base_id) &&
                             holds.contains(edge->second.target_id);
      EXPECT_EQ(artifact.kept_difference, both_held) << artifact_id;
      kept += both_held ? 1 : 0;
      bytes += both_held ? artifact.record.image_bytes : 0;
    }
    EXPECT_EQ(catalog.kept_differences_, kept);
    EXPECT_EQ(catalog.kept_difference_bytes_, bytes);
  }

 public:
  // Whether a node that is away may come back with it.
  static bool IsAwayWith(const Directory& directory, const std::string& artifact_id) {
    return std::ranges::any_of(directory.inventory_.away_,
                               [&](const auto& node) { return node.second.artifacts.contains(artifact_id); });
  }
};

namespace directory_model_test {
namespace {

struct ModelReplica {
  std::string node;
  std::string artifact;
  bool disk = false;
  bool ready = false;
  bool partial = false;
  bool evicting = false;
  bool corrupt = false;
  std::set<std::string> accusers;
  std::set<std::string> readers;  // at most 4
  bool IsSource() const { return ready && !evicting && !corrupt; }
  bool ServesParts() const { return !ready && !disk && !evicting && !corrupt; }
};

struct ModelGrant {
  std::string receiver;
  std::string source;
  std::string artifact;
  std::string replica;
  std::string into_zone;
  SteadyTime issued;
};

struct ModelTask {
  std::string id;
  std::string artifact;
  std::string node;
  Location location;
  absl::Time created;
  TaskState state = TaskState::kOpen;
  uint32_t failures = 0;
  bool handed_out = false;
  std::optional<absl::Status> ended;
  SteadyTime due = SteadyTime::InfinitePast();
};

struct ModelKey {
  std::string artifact;
  uint64_t revision = 0;
  uint32_t keep = 0;                 // as given; 0: it was not
  std::vector<std::string> earlier;  // artifacts that are kept, the newest first
  std::vector<std::string> past;     // artifacts before them
};

struct ModelDifference {
  std::string base;
  std::string target;
  uint64_t bytes = 0;
};

struct ModelOrigin {
  uint64_t bytes = 0;  // what tells it from the one before
  bool compared = false;
  bool gone = false;
  SteadyTime intact_at = SteadyTime::InfinitePast();
};

struct ModelNode {
  uint64_t incarnation = 0;
  SteadyTime heard;
  bool draining = false;
  uint64_t sequence = 0;
  std::string host;
  std::string zone;
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

  // Whether the random steps came to what they are about.
  void CheckReach() { EXPECT_GT(paths_found_, 0); }

 private:
  static constexpr uint32_t kDifferenceVersions = 4;
  static constexpr uint64_t kImageBytes = 100;
  static constexpr uint64_t kChunkBytes = 60;
  using Replicas = std::map<std::string, ModelReplica>;

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  std::string SomeNodeId() { return absl::StrCat("n", Below(5)); }
  std::string SomeTensors() { return absl::StrCat("a", Below(6)); }
  static std::string DifferenceOf(const std::string& base, const std::string& target) {
    return absl::StrCat("d-", base, "-", target);
  }
  // A difference is an artifact like others, for all that replicas are concerned.
  std::string SomeArtifactId() {
    return Below(4) == 0 ? DifferenceOf(SomeTensors(), SomeTensors()) : SomeTensors();
  }
  std::string SomeKey() { return absl::StrCat("k", Below(4)); }
  NodeIdentity Current(const std::string& node) {
    return {node, nodes_.contains(node) ? nodes_[node].incarnation : 1};
  }

  void Step() {
    switch (Below(24)) {
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
      case 10:
      case 11:
        return RequestOne();
      case 12:
        return Below(2) == 0 ? CompleteOne() : RefuteOne();
      case 13:
        return ChangeArtifact();
      case 14:
        return ChangeKey();
      case 15:
      case 16:
        return CheckOne();
      case 17:
      case 18:
        return TaskOne();
      case 19:
        return WorkOnTasks();
      case 20:
        return ReportTask();
      case 21:
        return PutVersion();
      case 22:
        return FindPath();
      default:
        return TickOrDrain();
    }
  }

  void DropNode(const std::string& node) {
    nodes_.erase(node);
    removed_.erase(node);
    for (auto& [place, task] : tasks_) task.handed_out &= task.node != node;
    std::erase_if(replicas_, [&](const auto& entry) { return entry.second.node == node; });
  }

  // An incarnation after, before, or the same as the last: a start, a copy of the node's folder, a
  // repetition.
  void RegisterOne() {
    const std::string node = SomeNodeId();
    const uint64_t last = incarnations_[node];
    const uint64_t incarnation = last + static_cast<uint64_t>(Below(3)) - static_cast<uint64_t>(last > 0);
    const bool replaced = nodes_.contains(node) && incarnation < nodes_[node].incarnation;
    NodeFacts facts = SomeNode(node, incarnation);
    facts.labels = {{"zone", absl::StrCat("z", Below(2))}, {"rack", absl::StrCat("r", Below(2))}};
    if (Below(4) == 0) facts.host_id = "shared";
    const auto registered = directory_.RegisterNode(facts, {}, now_);
    ASSERT_EQ(registered.ok(), incarnation > 0 && !replaced) << registered.status();
    if (!registered.ok()) return;
    if (nodes_.contains(node) && nodes_[node].incarnation < incarnation) DropNode(node);
    nodes_[node].incarnation = incarnations_[node] = incarnation;
    nodes_[node].heard = now_;
    nodes_[node].host = facts.host_id;
    nodes_[node].zone = facts.labels["zone"];
  }

  void BeatOne() {
    const std::string node = SomeNodeId();
    std::vector<std::string> active;
    for (const auto& [id, grant] : grants_) {
      if (grant.receiver == node && Below(2) == 0) active.push_back(id);
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
            .state = state,
            .chunks_present = state == ReplicaState::kPartial ? 1u : 0u};
  }
  void Note(const ReplicaInfo& facts) {
    ModelReplica& replica = replicas_[facts.id];
    replica.node = facts.node_id;
    replica.artifact = facts.artifact_id;
    replica.disk = facts.location.kind == LocationKind::kDisk;
    replica.ready = facts.state == ReplicaState::kReady;
    replica.partial = facts.state == ReplicaState::kPartial;
  }
  ReplicaInfo FactsOf(const std::string& id, const ModelReplica& replica, ReplicaState state) {
    return {.id = id,
            .artifact_id = replica.artifact,
            .node_id = replica.node,
            .location = {.kind = replica.disk ? LocationKind::kDisk : LocationKind::kCpu},
            .state = state,
            .chunks_present = state == ReplicaState::kPartial ? 1u : 0u};
  }
  // Ready, filling, or resting as it is.
  ReplicaState SomeState() {
    constexpr ReplicaState kStates[] = {ReplicaState::kReady, ReplicaState::kFilling, ReplicaState::kPartial};
    return kStates[Below(3)];
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
      facts = NewReplica(node, SomeState());
      Note(facts);
    } else if (Below(2) == 0) {
      facts = FactsOf(old, replicas_[old], SomeState());
      Note(facts);
    } else {
      facts = FactsOf(old, replicas_[old], Below(2) == 0 ? ReplicaState::kGone : ReplicaState::kFailed);
      replicas_.erase(old);
      removed_[node] = old;
    }
    nodes_[node].sequence += static_cast<uint64_t>(1 + (Below(10) == 0));
    ASSERT_TRUE(directory_.UpdateReplicas(Current(node), nodes_[node].sequence, {facts}, now_).ok());
    EndTaskBy(node, facts);
  }

  // A ready replica ends the task that wants it.
  void EndTaskBy(const std::string& node, const ReplicaInfo& facts) {
    const auto task =
        tasks_.find(absl::StrCat(facts.artifact_id, "\n", node, "\n", facts.location.ToString()));
    if (facts.state != ReplicaState::kReady || task == tasks_.end()) return;
    if (task->second.state != TaskState::kOpen || task->second.ended.has_value()) return;
    task->second.ended = absl::OkStatus();
    task->second.handed_out = false;
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
        const ModelReplica& held = it->second;
        all.push_back(FactsOf(it->first, held,
                              held.ready     ? ReplicaState::kReady
                              : held.partial ? ReplicaState::kPartial
                                             : ReplicaState::kFilling));
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
      EndTaskBy(node, facts);
      const std::string& artifact = facts.artifact_id;
      const bool known = published_.contains(artifact) || deleted_.contains(artifact);
      if (facts.state == ReplicaState::kReady && !known) expected.insert(artifact);
    }
    EXPECT_THAT(*unknown, ::testing::ElementsAreArray(expected));
  }

  bool MayEvict(const std::string& id) {
    const ModelReplica& replica = replicas_[id];
    const bool matters = replica.ready && !replica.evicting;  // accused or not
    if (!matters || deleted_.contains(replica.artifact)) return true;
    if (differences_.contains(replica.artifact)) return true;  // it does not count as a copy
    if (HasOtherCopy(id)) return true;
    if (IsReleased(replica.artifact)) return false;  // its artifact has to go first
    for (const auto& [place, origin] : origins_) {
      const bool fresh =
          origin.compared && !origin.gone && now_ - origin.intact_at <= options_.origin_finding_age;
      if (place.first == replica.artifact && nodes_.contains(place.second) && fresh) return true;
    }
    return false;
  }

  bool HasOtherCopy(const std::string& id) {
    const ModelReplica& replica = replicas_[id];
    for (const auto& [other_id, other] : replicas_) {
      const bool stays = other.disk || !nodes_[other.node].draining;
      const bool proven = other.node == replica.node || !other_id.ends_with('3');
      if (other_id != id && other.artifact == replica.artifact && other.IsSource() && stays && proven) {
        return true;
      }
    }
    return false;
  }

  bool IsNamed(const std::string& artifact) const {
    return std::ranges::any_of(keys_, [&](const auto& key) { return key.second.artifact == artifact; });
  }
  bool IsKept(const std::string& artifact) const {
    return std::ranges::any_of(
        keys_, [&](const auto& key) { return std::ranges::count(key.second.earlier, artifact) > 0; });
  }
  // It is among the last versions of a key, or stays until it is deleted.
  bool IsEnd(const std::string& artifact) const {
    if (published_.contains(artifact) && !versioned_.contains(artifact)) return true;
    return std::ranges::any_of(keys_, [&](const auto& key) {
      std::vector<std::string> ends = {key.second.artifact};
      ends.insert(ends.end(), key.second.earlier.begin(), key.second.earlier.end());
      ends.insert(ends.end(), key.second.past.begin(), key.second.past.end());
      const auto last = ends.begin() + std::min<ptrdiff_t>(std::ssize(ends), kDifferenceVersions);
      return std::find(ends.begin(), last, artifact) != last;
    });
  }
  bool IsReleased(const std::string& artifact) const {
    const auto difference = differences_.find(artifact);
    if (difference != differences_.end()) {
      return !IsEnd(difference->second.base) || !IsEnd(difference->second.target);
    }
    return versioned_.contains(artifact) && !IsNamed(artifact) && !IsKept(artifact);
  }

  void ForgetArtifact(const std::string& artifact) {
    published_.erase(artifact);
    differences_.erase(artifact);
    versioned_.erase(artifact);
    std::erase_if(origins_, [&](const auto& entry) { return entry.first.first == artifact; });
    std::erase_if(tasks_, [&](const auto& entry) { return entry.second.artifact == artifact; });
    for (auto& [name, key] : keys_) std::erase(key.earlier, artifact);
    deleted_.insert(artifact);
  }

  // What no key keeps and no node has goes, unless a node that is away may come back with it.
  void ReleaseSome() {
    const DurableFacts facts = directory_.PrepareReleases(now_, wall_now());
    EXPECT_EQ(facts.artifacts.empty(), !directory_.HasReleases(now_));
    std::set<std::string> expected;
    for (const std::string& artifact : published_) {
      const bool held = std::ranges::any_of(
          replicas_, [&](const auto& entry) { return entry.second.artifact == artifact; });
      const bool needed =
          !differences_.contains(artifact) && (held || DirectoryInvariants::IsAwayWith(directory_, artifact));
      if (IsReleased(artifact) && !needed) expected.insert(artifact);
    }
    std::set<std::string> going;
    for (const ArtifactRecord& record : facts.artifacts) going.insert(record.artifact_id);
    ASSERT_EQ(going, expected);
    directory_.Apply(facts, now_);
    for (const std::string& artifact : going) ForgetArtifact(artifact);
  }

  // Looks at some origin that is on record, as its node might find it.
  void CheckOne() {
    if (origins_.empty()) return;
    auto it = std::next(origins_.begin(), Below(static_cast<int>(origins_.size())));
    const auto& [artifact, node] = it->first;
    const Origin origin{.node_id = node, .objects = {{"/m", it->second.bytes, "1"}}, .compared = true};
    if (nodes_.contains(node) && Below(2) == 0) {
      const auto plan = directory_.PreparePublish(
          {.node = Current(node), .artifact = {.artifact_id = artifact}, .origin = origin}, wall_now());
      ASSERT_TRUE(plan.ok()) << plan.status();
      directory_.Apply(plan->facts, now_);
      directory_.catalog().RenewOrigin(artifact, node);
      it->second = {.bytes = it->second.bytes, .compared = true};
      return;
    }
    const bool gone = Below(3) == 0;
    directory_.NoteOrigin(artifact, origin, gone ? OriginFinding::kGone : OriginFinding::kIntact, "", now_);
    if (gone) it->second.gone = true;
    if (!gone) it->second.intact_at = now_;
  }

  void EvictOne() {
    const std::string node = SomeNodeId();
    const std::string id = SomeReplicaOf(node);
    if (id.empty()) return;
    if (Below(4) == 0) {
      ASSERT_TRUE(directory_.evictions().Withdraw(Current(node), id).ok());
      replicas_[id].evicting = false;
      return;
    }
    Proofs proofs;
    auto decision = directory_.evictions().Request(Current(node), id, now_);
    while (decision.ok() && !decision->to_prove.copies.empty()) {
      EXPECT_FALSE(decision->granted);
      for (const CopyToProve& copy : decision->to_prove.copies) {
        EXPECT_NE(copy.replica.node_id, node);
        if (copy.origin.has_value()) {
          proofs.proven.push_back(copy.replica);
          continue;
        }
        EXPECT_TRUE(replicas_.at(copy.replica.replica_id).IsSource());
        // Some lie.
        const bool lies = copy.replica.replica_id.ends_with('3');
        (lies ? proofs.unproven : proofs.proven).push_back(copy.replica);
      }
      decision = directory_.evictions().Request(Current(node), id, now_, proofs);
    }
    ASSERT_TRUE(decision.ok());
    EXPECT_EQ(decision->granted, MayEvict(id)) << decision->reason;
    const std::string artifact = replicas_[id].artifact;
    EXPECT_EQ(decision->release_first, !decision->granted && IsReleased(artifact));
    const DurableFacts release = directory_.evictions().PrepareReleaseOf({node, id}, proofs, wall_now());
    // A replica that does not matter goes without a question about copies, so there may be no proofs to
    // release by.
    EXPECT_TRUE(!decision->release_first || release.artifacts.size() == 1);
    EXPECT_TRUE(release.artifacts.empty() || (IsReleased(artifact) && !HasOtherCopy(id)));
    if (decision->release_first) {
      directory_.Apply(release, now_);
      ForgetArtifact(artifact);
      decision = directory_.evictions().Request(Current(node), id, now_, proofs);
      ASSERT_TRUE(decision.ok());
      EXPECT_TRUE(decision->granted) << decision->reason;
    }
    if (decision->granted) replicas_[id].evicting = true;
  }

  void RequestOne() {
    const std::string receiver = SomeNodeId();
    const std::string artifact = SomeArtifactId();
    if (!nodes_.contains(receiver)) return;
    std::vector<std::string> excluded;
    std::vector<std::string> corrupt;
    for (auto& [id, replica] : replicas_) {
      if (replica.artifact == artifact && Below(6) == 0) {
        excluded.push_back(id);
        if (Below(2) == 0) corrupt.push_back(id);
      }
    }
    const bool known = published_.contains(artifact);
    for (const auto& [grant_id, grant] : grants_) {
      const bool accused = known && std::ranges::count(corrupt, grant.replica) > 0;
      if (accused && grant.receiver == receiver) Accuse(receiver, grant.replica);
    }
    std::vector<std::string> held;
    for (const auto& [id, grant] : grants_) {
      if (grant.receiver == receiver && grant.artifact == artifact && Below(2) == 0) held.push_back(id);
    }
    const std::string fills = SomeFilled(receiver, artifact);
    // May it be offered at all? Ready, or in parts.
    const auto may_serve = [&](const std::string& id, bool ready) {
      const ModelReplica& replica = replicas_.at(id);
      return replica.artifact == artifact && replica.node != receiver &&
             (ready ? replica.IsSource() : replica.ServesParts()) && std::ranges::count(excluded, id) == 0 &&
             std::ranges::none_of(held,
                                  [&](const std::string& grant) { return grants_.at(grant).replica == id; });
    };
    bool any_ready = false;
    bool any_filling = false;
    for (const auto& [id, replica] : replicas_) {
      any_ready |= may_serve(id, true);
      any_filling |= may_serve(id, false);
    }
    const uint32_t wanted = static_cast<uint32_t>(held.size()) + 1 + static_cast<uint32_t>(Below(3));
    const auto offer = directory_.RequestGrant({.receiver = Current(receiver),
                                                .artifact_id = artifact,
                                                .destination = {},
                                                .excluded_replicas = excluded,
                                                .corrupt_replicas = corrupt,
                                                .sources = wanted,
                                                .received_mbit = static_cast<uint64_t>(Below(3)) * 400,
                                                .held_grants = held,
                                                .fills = fills},
                                               now_);
    ASSERT_EQ(offer.ok(), known) << offer.status();
    if (!offer.ok()) return;
    ASSERT_LE(offer->granted.size(), wanted);
    DirectoryInvariants::CheckWait(directory_, artifact, receiver, now_);
    if (nodes_[receiver].draining && held.empty() && excluded.empty()) {
      ASSERT_TRUE(offer->granted.empty());
      ASSERT_EQ(offer->retry_after, absl::ZeroDuration());
      return;
    }
    // A receiver with only partial replicas does not end: it gets another source, or a time to ask again.
    bool only_partial = true;
    for (const std::string& grant : held) only_partial &= replicas_.at(grants_.at(grant).replica).partial;
    for (const OfferedGrant& granted : offer->granted) {
      only_partial &= replicas_.at(granted.grant.replica_id).partial;
    }
    if (any_ready && only_partial) {
      ASSERT_TRUE(HostmatePulls(receiver, artifact) || ZonePulls(receiver, artifact))
          << offer->no_source_reason;
      ASSERT_TRUE(offer->retry_after > absl::ZeroDuration() || !offer->granted.empty());
    }
    ASSERT_TRUE(any_ready || any_filling || offer->granted.empty());
    std::set<std::string> offered;
    for (const OfferedGrant& granted : offer->granted) {
      const Grant& grant = granted.grant;
      const ModelReplica& source = replicas_.at(grant.replica_id);
      EXPECT_TRUE(may_serve(grant.replica_id, source.ready)) << grant.replica_id;
      EXPECT_TRUE(offered.insert(grant.replica_id).second) << "twice";
      EXPECT_EQ(source.node, grant.source_node);
      if (!source.ready && !source.partial) {
        EXPECT_TRUE(EndsAtARoot(grant.source_node, artifact, receiver))
            << "it waits for its receiver, or for no node";
      }
    }
    for (const OfferedGrant& granted : offer->granted) {
      const bool fresh = grants_
                             .emplace(granted.grant.grant_id,
                                      ModelGrant{receiver, granted.grant.source_node, artifact,
                                                 granted.grant.replica_id, granted.grant.into_zone, now_})
                             .second;
      EXPECT_TRUE(fresh);
    }
  }

  // The replica that a request names as the one it fills: a new one, one that the store knows or knew, or
  // none. A new one is listed from then on, if the artifact is known.
  std::string SomeFilled(const std::string& receiver, const std::string& artifact) {
    if (Below(2) == 0) return "";
    if (Below(2) == 0) return SomeReplicaOf(receiver);
    // The request was under way when the replica was removed: it stays removed.
    if (Below(4) == 0) return removed_[receiver];
    ReplicaInfo facts = NewReplica(receiver, ReplicaState::kFilling);
    facts.artifact_id = artifact;
    facts.location = {};
    if (published_.contains(artifact)) Note(facts);
    return facts.id;
  }

  // Whether another node of its host was given a source on another host a moment ago.
  bool HostmatePulls(const std::string& receiver, const std::string& artifact) {
    const std::string& host = nodes_[receiver].host;
    return std::ranges::any_of(grants_, [&](const auto& entry) {
      const ModelGrant& grant = entry.second;
      return grant.artifact == artifact && grant.receiver != receiver &&
             nodes_[grant.receiver].host == host && nodes_[grant.source].host != host &&
             now_ - grant.issued < absl::Milliseconds(500);
    });
  }
  // Another node has just begun to pull it into the receiver's zone.
  bool ZonePulls(const std::string& receiver, const std::string& artifact) {
    return std::ranges::any_of(grants_, [&](const auto& entry) {
      const ModelGrant& grant = entry.second;
      return grant.artifact == artifact && grant.receiver != receiver &&
             grant.into_zone == nodes_[receiver].zone && now_ - grant.issued < absl::Milliseconds(500);
    });
  }

  // Whether the grants of that node lead, without the receiver, to a ready replica or to a node that has
  // none: that one fills from what it has.
  bool EndsAtARoot(const std::string& node, const std::string& artifact, const std::string& receiver) {
    std::set<std::string> seen = {node, receiver};
    std::vector<std::string> next = {node};
    while (!next.empty()) {
      const std::string at = next.back();
      next.pop_back();
      bool pulls = false;
      for (const auto& [id, grant] : grants_) {
        if (grant.receiver != at || grant.artifact != artifact) continue;
        pulls = true;
        if (replicas_.contains(grant.replica) && replicas_.at(grant.replica).partial) continue;
        if (grant.source != receiver && replicas_.contains(grant.replica) &&
            replicas_.at(grant.replica).IsSource()) {
          return true;
        }
        if (seen.insert(grant.source).second) next.push_back(grant.source);
      }
      if (!pulls) return true;
    }
    return false;
  }

  void CompleteOne() {
    if (grants_.empty()) return;
    auto it = std::next(grants_.begin(), Below(static_cast<int>(grants_.size())));
    const ModelGrant grant = it->second;
    const bool corrupt = Below(4) == 0;
    const GrantEnd end = corrupt || Below(2) == 0 ? GrantEnd::kFailed : GrantEnd::kSucceeded;
    const std::string brought = end == GrantEnd::kSucceeded ? BroughtBy(it->first) : "";
    ASSERT_TRUE(
        directory_.transfers().CompleteGrant(Current(grant.receiver), it->first, end, corrupt, now_).ok());
    if (corrupt) Accuse(grant.receiver, grant.replica);
    if (end == GrantEnd::kSucceeded) {
      std::set<std::string>& readers = replicas_.at(grant.replica).readers;
      if (readers.size() < 4) readers.insert(grant.receiver);
    }
    if (!brought.empty()) replicas_[brought].ready = true;
  }

  // The replica that is ready once this grant ends well: the receiver's, of a difference of which it holds no
  // other grant. Empty: there is none.
  std::string BroughtBy(const std::string& grant_id) {
    const ModelGrant& grant = grants_.at(grant_id);
    const auto beside = [&](const auto& entry) {
      return entry.first != grant_id && entry.second.receiver == grant.receiver &&
             entry.second.artifact == grant.artifact;
    };
    if (!differences_.contains(grant.artifact) || std::ranges::any_of(grants_, beside)) return "";
    const auto fills = [&](const auto& entry) {
      const ModelReplica& replica = entry.second;
      return replica.node == grant.receiver && replica.artifact == grant.artifact && !replica.disk &&
             !replica.ready && !replica.partial && !replica.evicting && !replica.corrupt;
    };
    const auto found = std::ranges::find_if(replicas_, fills);
    return found == replicas_.end() ? "" : found->first;
  }

  bool HasWeight(const std::string& accuser) { return refutations_[accuser].size() < 2; }

  void Accuse(const std::string& accuser, const std::string& id) {
    ModelReplica& replica = replicas_.at(id);
    if (!replica.accusers.insert(accuser).second) return;
    replica.corrupt |= HasWeight(accuser);
  }

  // A holder digested one of its replicas again, accused or not.
  void RefuteOne() {
    const std::string node = SomeNodeId();
    const std::string id = SomeReplicaOf(node);
    if (id.empty()) return;
    directory_.accusations().NoteIntact({node, id});
    ModelReplica& replica = replicas_.at(id);
    const auto with_weight = static_cast<size_t>(
        std::ranges::count_if(replica.accusers, [this](const auto& name) { return HasWeight(name); }));
    for (const std::string& accuser : replica.accusers) {
      if (HasWeight(accuser)) refutations_[accuser].insert(node);
    }
    if (with_weight < std::max<size_t>(2, replica.readers.size() + 1)) replica.corrupt = false;
  }

  void NoteEnded() {
    for (const EndedGrant& ended : directory_.transfers().grants().TakeEnded()) {
      EXPECT_EQ(grants_.erase(ended.grant.grant_id), 1u) << "ended twice, or never given";
    }
    EXPECT_EQ(directory_.counts().active_grants, grants_.size());
  }

  void ChangeArtifact() {
    if (Below(3) > 0) {
      const std::string artifact = SomeTensors();
      const std::string node = SomeNodeId();
      std::optional<Origin> origin;
      if (Below(2) == 0) {
        origin = {.node_id = node, .objects = {{"/m", static_cast<uint64_t>(Below(2)), "1"}}};
      }
      const auto plan = directory_.PreparePublish(
          {.node = Current(node),
           .artifact = {.artifact_id = artifact, .image_bytes = kImageBytes, .chunk_bytes = kChunkBytes},
           .origin = origin},
          wall_now());
      ASSERT_EQ(plan.ok(), nodes_.contains(node));
      if (!plan.ok()) return;
      EXPECT_EQ(plan->existed, published_.contains(artifact));
      // Put without a key it stays, though it was a version that was to go.
      if (IsReleased(artifact)) versioned_.erase(artifact);
      directory_.Apply(plan->facts, now_);
      if (origin.has_value()) {
        directory_.catalog().RenewOrigin(artifact, node);
        ModelOrigin& known = origins_[{artifact, node}];
        const bool same = known.bytes == origin->objects[0].bytes;
        known = {.bytes = origin->objects[0].bytes, .compared = same && known.compared};
      }
      published_.insert(artifact);
      deleted_.erase(artifact);
      return;
    }
    const std::string artifact = SomeArtifactId();
    const auto facts = directory_.catalog().PrepareDeleteArtifact(artifact, wall_now());
    ASSERT_EQ(facts.ok(), published_.contains(artifact) && !IsNamed(artifact)) << facts.status();
    if (!facts.ok()) return;
    directory_.Apply(*facts, now_);
    ForgetArtifact(artifact);
    std::vector<std::string> with_it;
    for (const auto& [id, difference] : differences_) {
      if (difference.base == artifact || difference.target == artifact) with_it.push_back(id);
    }
    for (const std::string& id : with_it) ForgetArtifact(id);
  }

  // A trainer's step: the next version of a key, with the difference from another artifact.
  void PutVersion() {
    const std::string node = SomeNodeId();
    const std::string artifact = SomeTensors();
    const std::string key = SomeKey();
    const bool from_current = keys_.contains(key) && Below(4) > 0;
    const std::string base = from_current ? keys_.at(key).artifact : SomeTensors();
    if (artifact == base) return;
    ArtifactRecord difference{.artifact_id = DifferenceOf(base, artifact),
                              .kind = ArtifactKind::kDifference,
                              .image_bytes = static_cast<uint64_t>(1 + Below(40)),
                              .chunk_bytes = kChunkBytes,
                              .base_id = base,
                              .target_id = artifact};
    const auto plan = directory_.PreparePublish(
        {.node = Current(node),
         .artifact = {.artifact_id = artifact, .image_bytes = kImageBytes, .chunk_bytes = kChunkBytes},
         .key = key,
         .difference = difference},
        wall_now());
    ASSERT_EQ(plan.ok(), nodes_.contains(node) && published_.contains(base)) << plan.status();
    if (!plan.ok()) return;
    EXPECT_EQ(plan->difference_existed, differences_.contains(difference.artifact_id));
    directory_.Apply(plan->facts, now_);
    published_.insert(artifact);
    deleted_.erase(artifact);
    published_.insert(difference.artifact_id);
    deleted_.erase(difference.artifact_id);
    differences_.emplace(difference.artifact_id, ModelDifference{base, artifact, difference.image_bytes});
    EXPECT_EQ(plan->key_revision, ++revisions_[key]);
    NoteBound(key, artifact, std::nullopt);
    const ReplicaInfo replica{.id = absl::StrCat("r", ++last_replica_),
                              .artifact_id = difference.artifact_id,
                              .node_id = node,
                              .location = {.kind = LocationKind::kCpu},
                              .state = ReplicaState::kReady};
    directory_.AddPublishedReplica(Current(node), replica);
    Note(replica);
  }

  // What a follower is told is a way that it can go.
  void FindPath() {
    const std::string target = SomeTensors();
    std::set<std::string, std::less<>> held;
    for (int i = Below(3); i >= 0; --i) held.insert(SomeTensors());
    const std::vector<DifferenceEdge> path = directory_.DifferencesTo(target, held);
    const auto is_usable = [&](const std::string& id) {
      return published_.contains(id) && std::ranges::any_of(replicas_, [&](const auto& entry) {
               return entry.second.artifact == id && entry.second.IsSource();
             });
    };
    const bool known = published_.contains(target) && !held.contains(target);
    const uint64_t image_bytes = known ? directory_.catalog().Find(target)->record.image_bytes : 0;
    uint64_t cheapest = image_bytes;  // by one difference
    for (const auto& [id, difference] : differences_) {
      if (difference.target == target && held.contains(difference.base) && is_usable(id)) {
        cheapest = std::min(cheapest, difference.bytes);
      }
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < path.size(); ++i) {
      EXPECT_TRUE(is_usable(path[i].artifact_id)) << path[i].artifact_id;
      EXPECT_EQ(path[i].target_id, i + 1 < path.size() ? path[i + 1].base_id : target);
      bytes += path[i].image_bytes;
    }
    if (path.empty()) {
      EXPECT_EQ(cheapest, image_bytes) << "there is a difference to " << target;
      return;
    }
    EXPECT_TRUE(known);
    EXPECT_TRUE(held.contains(path.front().base_id));
    EXPECT_LT(bytes, image_bytes);
    EXPECT_LE(bytes, cheapest);
    ++paths_found_;
  }

  // What the task is once the end of its attempt is durable.
  static TaskState Settled(const ModelTask& task) {
    if (!task.ended.has_value()) return task.state;
    if (task.ended->ok()) return TaskState::kDone;
    const bool last = absl::IsNotFound(*task.ended) || task.failures == 3;
    return last ? TaskState::kFailed : TaskState::kOpen;
  }

  // Makes one, or takes one back.
  void TaskOne() {
    const std::string artifact = SomeArtifactId();
    const std::string node = SomeNodeId();
    const Location location = {.kind = Below(4) == 0 ? LocationKind::kDisk : LocationKind::kCpu};
    if (!nodes_.contains(node)) return;
    const std::string place = absl::StrCat(artifact, "\n", node, "\n", location.ToString());
    auto known = tasks_.find(place);
    const bool open = known != tasks_.end() && Settled(known->second) == TaskState::kOpen;
    if (Below(4) == 0) {
      const CancelPlan plan =
          directory_.tasks().PrepareCancel(artifact, {{.node = node, .location = location}}, wall_now());
      ASSERT_EQ(plan.tasks.size(), open ? 1u : 0u);
      directory_.Apply(plan.facts, now_);
      if (open) tasks_.erase(known);
      return;
    }
    const TaskRequest request{.request_id = absl::StrCat("q", ++last_request_),
                              .artifact_id = artifact,
                              .targets = {{.node = node, .location = location}}};
    const auto plan = directory_.tasks().Prepare(request, wall_now());
    ASSERT_EQ(plan.ok(), published_.contains(artifact)) << plan.status();
    if (!plan.ok()) return;
    ASSERT_EQ(plan->places.size(), 1u);
    const TaskPlacement& requested = plan->places.front();
    ASSERT_TRUE(requested.error.ok()) << requested.error;
    directory_.Apply(plan->facts, now_);
    const bool there = std::ranges::any_of(replicas_, [&](const auto& entry) {
      const ModelReplica& replica = entry.second;
      return replica.artifact == artifact && replica.node == node && replica.IsSource() &&
             replica.disk == (location.kind == LocationKind::kDisk);
    });
    ASSERT_EQ(!requested.replica_id.empty(), there);
    ASSERT_EQ(requested.task.has_value(), !there);
    if (there) return;
    if (open) {
      EXPECT_EQ(requested.task->record.task_id, known->second.id) << "it is requested already";
      return;
    }
    tasks_[place] = {.id = requested.task->record.task_id,
                     .artifact = artifact,
                     .node = node,
                     .location = location,
                     .created = wall_now()};
  }

  // What a node is given with its heartbeat: all that it works on, and some of the others in their order.
  void WorkOnTasks() {
    const std::string node = SomeNodeId();
    const auto taken = directory_.tasks().Take(Current(node), now_);
    ASSERT_EQ(taken.ok(), nodes_.contains(node));
    if (!taken.ok()) return;
    std::map<std::pair<absl::Time, std::string>, ModelTask*> in_order;
    for (auto& [place, task] : tasks_) {
      if (task.node == node && task.state == TaskState::kOpen) in_order[{task.created, place}] = &task;
    }
    std::vector<std::string> expected;
    for (const auto& [order, task] : in_order) {
      if (task->handed_out) expected.push_back(task->id);
    }
    for (const auto& [order, task] : in_order) {
      if (nodes_[node].draining || expected.size() >= options_.tasks.at_once) break;
      if (task->handed_out || task->ended.has_value() || task->due > now_) continue;
      task->handed_out = true;
      expected.push_back(task->id);
    }
    std::vector<std::string> ids;
    for (const TaskRecord& record : *taken) ids.push_back(record.task_id);
    EXPECT_EQ(ids, expected);
  }

  // A node says how one stands, perhaps one that it was never given; and what ended is made durable.
  void ReportTask() {
    if (Below(2) == 0) {
      directory_.Apply(directory_.tasks().PrepareSettle(wall_now()), now_);
      for (auto& [place, task] : tasks_) {
        if (!task.ended.has_value()) continue;
        task.state = Settled(task);
        task.failures += task.ended->ok() ? 0 : 1;
        if (task.state == TaskState::kOpen) task.due = now_ + options_.tasks.pauses[task.failures - 1];
        task.ended.reset();
      }
      EXPECT_FALSE(directory_.tasks().HasToSettle());
      return;
    }
    if (tasks_.empty()) return;
    auto& task = std::next(tasks_.begin(), Below(static_cast<int>(tasks_.size())))->second;
    TaskReport report{.task_id = task.id, .bytes = 1, .bytes_total = 2};
    constexpr absl::StatusCode kEnds[] = {absl::StatusCode::kOk, absl::StatusCode::kUnavailable,
                                          absl::StatusCode::kNotFound};
    if (Below(3) > 0) report.ended = absl::Status(kEnds[Below(3)], "");
    const auto noted = directory_.tasks().Note(Current(task.node), {report});
    ASSERT_EQ(noted.ok(), nodes_.contains(task.node)) << noted;
    if (!noted.ok() || task.state != TaskState::kOpen || task.ended.has_value()) return;
    task.ended = report.ended;
    task.handed_out = !report.ended.has_value();
  }

  static TaskProgress ProgressOf(const ModelTask& task) {
    const TaskState state = Settled(task);
    if (state == TaskState::kDone) return TaskProgress::kDone;
    if (state == TaskState::kFailed) return TaskProgress::kFailed;
    return task.handed_out ? TaskProgress::kRunning : TaskProgress::kWaiting;
  }

  void ChangeKey() {
    const std::string key = SomeKey();
    const uint64_t current = keys_.contains(key) ? keys_[key].revision : 0;
    const uint64_t expected = current + static_cast<uint64_t>(Below(4) == 0);
    if (Below(3) > 0) {
      const std::string artifact = SomeTensors();
      BindRequest request{.key = key, .artifact_id = artifact, .expected = expected};
      if (Below(3) == 0) request.keep = static_cast<uint32_t>(Below(5));
      const auto plan = directory_.catalog().PrepareBindKey(request, wall_now());
      ASSERT_EQ(plan.ok(), published_.contains(artifact) && expected == current && request.keep != 0u)
          << plan.status();
      if (!plan.ok()) return;
      EXPECT_EQ(plan->key.revision, ++revisions_[key]);
      directory_.Apply(plan->facts, now_);
      NoteBound(key, artifact, request.keep);
      return;
    }
    const auto plan = directory_.catalog().PrepareDeleteKey(key, expected, wall_now());
    ASSERT_EQ(plan.ok(), current != 0 && expected == current) << plan.status();
    if (!plan.ok()) return;
    directory_.Apply(plan->facts, now_);
    const std::string artifact = keys_[key].artifact;
    keys_.erase(key);
    if (!IsNamed(artifact) && !IsKept(artifact)) versioned_.erase(artifact);
  }

  void NoteBound(const std::string& key, const std::string& artifact, std::optional<uint32_t> given) {
    const bool was_bound = keys_.contains(key);
    ModelKey& bound = keys_[key];
    if (was_bound) bound.earlier.insert(bound.earlier.begin(), bound.artifact);
    std::erase(bound.earlier, artifact);
    std::erase(bound.past, artifact);
    bound.artifact = artifact;
    bound.revision = revisions_[key];
    bound.keep = given.value_or(bound.keep);
    const uint32_t keep = bound.keep != 0 ? bound.keep : key == "k1" ? 3 : 2;
    while (bound.earlier.size() >= keep) {
      bound.past.insert(bound.past.begin(), bound.earlier.back());
      bound.earlier.pop_back();
    }
    while (!bound.past.empty() && bound.earlier.size() + bound.past.size() >= kDifferenceVersions) {
      bound.past.pop_back();
    }
    versioned_.insert(artifact);
  }

  void TickOrDrain() {
    const std::string node = SomeNodeId();
    if (Below(3) == 0) {
      const bool draining = Below(2) == 0;
      ASSERT_EQ(directory_.DrainNode(node, draining).ok(), nodes_.contains(node));
      if (nodes_.contains(node)) nodes_[node].draining = draining;
      return;
    }
    if (Below(2) == 0) return ReleaseSome();
    directory_.Tick(now_);
    std::vector<std::string> silent;
    for (const auto& [id, model] : nodes_) {
      if (now_ - model.heard > options_.membership.node_ttl) silent.push_back(id);
    }
    for (const std::string& id : silent) DropNode(id);
  }

  void Compare() {
    DirectoryInvariants::Check(directory_);
    const DirectoryCounts counts = directory_.counts();
    ASSERT_EQ(counts.nodes, nodes_.size());
    ASSERT_EQ(counts.replicas, replicas_.size());
    ASSERT_EQ(counts.artifacts, published_.size() - differences_.size());
    ASSERT_EQ(counts.keys, keys_.size());
    for (const auto& [name, bound] : keys_) {
      const auto key = directory_.catalog().ResolveKey(name);
      ASSERT_TRUE(key.ok());
      ASSERT_EQ(key->artifact_id, bound.artifact);
      ASSERT_EQ(key->revision, bound.revision);
      std::vector<std::string> earlier;
      for (const KeyVersion& version : key->earlier) earlier.push_back(version.artifact_id);
      ASSERT_EQ(earlier, bound.earlier);
      ASSERT_EQ(key->past, bound.past);
    }
    for (const auto& [id, difference] : differences_) {
      ASSERT_EQ(directory_.catalog().IsReleased(id), IsReleased(id)) << id;
    }
    const std::vector<TaskView> tasks = directory_.tasks().List("", "", tasks_.size() + 1);
    ASSERT_EQ(tasks.size(), tasks_.size());
    auto expected = tasks_.begin();
    for (const TaskView& view : tasks) {
      const ModelTask& task = (expected++)->second;
      ASSERT_EQ(view.record.task_id, task.id);
      ASSERT_EQ(view.progress, ProgressOf(task)) << task.id;
      ASSERT_EQ(view.waiting_for.empty(), view.progress != TaskProgress::kWaiting);
    }
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
  absl::Time wall_now() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }

  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  CountingSecrets secrets_;
  const DirectoryOptions options_{
      .transfers = {.filling_lanes = {"ucx"}},
      .retention = {.keep = 2, .by_prefix = {{"k1", 3}}, .difference_versions = kDifferenceVersions}};
  Directory directory_{options_, &secrets_};

  std::map<std::string, ModelNode> nodes_;
  std::map<std::string, uint64_t> incarnations_;
  Replicas replicas_;
  std::map<std::string, std::string> removed_;  // node -> the replica that it reported last as removed
  std::map<std::string, std::set<std::string>> refutations_;  // accuser -> holders
  int last_replica_ = 0;
  std::set<std::string> published_;
  std::set<std::string> deleted_;
  std::map<std::pair<std::string, std::string>, ModelOrigin> origins_;  // by artifact and node
  std::map<std::string, ModelKey> keys_;                                // by name
  std::set<std::string> versioned_;  // artifacts that are versions of keys, or were
  std::map<std::string, uint64_t> revisions_;
  std::map<std::string, ModelGrant> grants_;  // by id
  std::map<std::string, ModelTask> tasks_;    // by place
  int last_request_ = 0;
  std::map<std::string, ModelDifference> differences_;  // by id
  int paths_found_ = 0;
};

constexpr int kSeeds = 10;

// TENSORCAST_MODEL_STEPS says how many for all seeds together (`make model`: a million, half a minute).
TEST_P(Model, RandomSteps_KeepDirectoryEqualToModel) {
  int steps = 30'000;
  if (const char* wanted = std::getenv("TENSORCAST_MODEL_STEPS"); wanted != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(wanted, &steps)) << "TENSORCAST_MODEL_STEPS is not a number: " << wanted;
  }
  Run(steps / kSeeds);
  if (steps >= 30'000) CheckReach();
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model, ::testing::Range(1, kSeeds + 1));

}  // namespace
}  // namespace directory_model_test
}  // namespace tensorcast::global_store
