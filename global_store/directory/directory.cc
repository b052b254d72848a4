#include "global_store/directory/directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/layout.h"

namespace tensorcast::global_store {
namespace {

// In one change, of which a metadata store takes so many operations.
constexpr size_t kReleasesAtOnce = 100;

// The tasks that these replicas of the node fulfil: its node need not report their ends, too.
std::vector<TaskReport> EndedBy(const Tasks& tasks, const std::string& node_id,
                                const std::vector<ReplicaInfo>& replicas) {
  std::vector<TaskReport> ended;
  for (const ReplicaInfo& replica : replicas) {
    if (replica.state != ReplicaState::kReady) continue;
    const std::optional<TaskView> task = tasks.FindAt(
        TaskKeyOf({.artifact_id = replica.artifact_id, .node_id = node_id, .location = replica.location}));
    if (!task.has_value() || task->record.state != TaskState::kOpen) continue;
    ended.push_back({.task_id = task->record.task_id,
                     .bytes = replica.image_bytes,
                     .bytes_total = replica.image_bytes,
                     .ended = absl::OkStatus()});
  }
  return ended;
}

}  // namespace

Directory::Directory(const DirectoryOptions& options, Secrets* secrets)
    : node_ttl_(options.membership.node_ttl),
      catalog_(options.retention),
      membership_(options.membership, secrets),
      inventory_(membership_, catalog_),
      evictions_(options.origin_finding_age, membership_, catalog_, &inventory_),
      accusations_(membership_, &inventory_),
      transfers_(options.transfers, options.origin_finding_age, secrets, &membership_, catalog_, &inventory_,
                 &accusations_, &rollouts_),
      tasks_(options.tasks, membership_, catalog_, inventory_),
      followers_(catalog_, inventory_, &tasks_) {}

// What was committed. It cannot fail: all checks were made by the Prepare... that planned it.
void Directory::Apply(const DurableFacts& facts, SteadyTime now) {
  for (const ArtifactRecord& record : facts.artifacts) {
    catalog_.Apply(record);
    if (!record.deleted) continue;
    tasks_.EraseOf(record.artifact_id);
    transfers_.EndOfArtifact(record.artifact_id, now);
    rollouts_.Forget(record.artifact_id);
  }
  for (const KeyRecord& record : facts.keys) catalog_.Apply(record);
  for (const NodeBinding& binding : facts.nodes) membership_.Apply(binding);
  for (const TaskRecord& record : facts.tasks) tasks_.Apply(record, now);
  for (const AnnouncementRecord& record : facts.announcements) announcements_.Apply(record);
  // These come last: what followers want follows from the keys, the artifacts and the tasks that are there.
  for (const FollowerRecord& record : facts.followers) followers_.Apply(record, now);
  for (const KeyRecord& record : facts.keys) followers_.NoteKey(record.name, now);
}

void Directory::Load(const DurableFacts& facts, SteadyTime now) {
  Apply(facts, now);
  rollouts_.SetBegin(now);
  // Longer than a node needs: what is deleted is told to those that come later, as forgotten.
  releases_from_ = now + 6 * node_ttl_;
  // Nodes that were here before the restart need some time to be heard again; until then a receiver without a
  // source is told to wait for them.
  if (!catalog_.artifacts().empty()) membership_.AwaitNodes(now);
}

absl::StatusOr<PublishPlan> Directory::PreparePublish(const PublishRequest& request, absl::Time now) const {
  // The checks that need nodes and replicas are made here; the catalog plans the facts.
  // A process that was replaced, or expired, must not add what would be listed under its successor.
  TC_RETURN_IF_ERROR(membership_.CheckIdentity(request.node));
  ArtifactRecord artifact = request.artifact;
  artifact.origins.clear();
  if (request.origin.has_value()) {
    artifact.origins.push_back(*request.origin);
    artifact.origins.back().node_id = request.node.node_id;
    if (request.origin->compared) {
      return catalog_.PrepareCompared(artifact.artifact_id, artifact.origins.back());
    }
  }
  if (request.replica.has_value()) {
    TC_RETURN_IF_ERROR(Inventory::Check(request.node.node_id, *request.replica));
    if (request.replica->artifact_id != artifact.artifact_id) {
      return absl::InvalidArgumentError(absl::StrCat(
          "publish ", artifact.artifact_id, ": replica ", request.replica->id, " is a replica of artifact ",
          request.replica->artifact_id, "; publish the replica with that artifact"));
    }
  }
  if (request.difference_replica.has_value()) {
    TC_RETURN_IF_ERROR(Inventory::Check(request.node.node_id, *request.difference_replica));
    if (!request.difference.has_value() ||
        request.difference_replica->artifact_id != request.difference->artifact_id) {
      return absl::InvalidArgumentError(absl::StrCat("publish ", artifact.artifact_id, ": replica ",
                                                     request.difference_replica->id,
                                                     " is not a replica of a difference that this call "
                                                     "publishes; publish the replica with its difference"));
    }
  }
  if (request.key.empty() && request.keep.has_value()) {
    return absl::InvalidArgumentError(
        "put: keep is a rule of a key, and no key was given; give a key, or leave keep out");
  }
  if (request.key.empty() && !request.files_id.empty()) {
    return absl::InvalidArgumentError(
        "put: files are bound by a key, and no key was given; give a key, or leave the files out");
  }
  std::optional<BindRequest> bind;
  if (!request.key.empty()) {
    bind = {.key = request.key,
            .artifact_id = artifact.artifact_id,
            .expected = request.expected_revision,
            .keep = request.keep,
            .files_id = request.files_id};
  }
  return catalog_.PreparePublish(artifact, bind, now, request.difference);
}

void Directory::AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica) {
  if (membership_.CheckIdentity(node).ok()) inventory_.AddPublished(node.node_id, replica);
}

std::vector<DifferenceEdge> Directory::DifferencesTo(std::string_view artifact_id,
                                                     const std::set<std::string, std::less<>>& held) const {
  const Catalog::Artifact* target = catalog_.Find(artifact_id);
  if (target == nullptr) return {};
  const auto has_source = [this](const DifferenceEdge& edge) {
    const SourceIndex::Scope* sources = inventory_.sources().Find(edge.artifact_id);
    return sources != nullptr && std::ranges::any_of(sources->ready, [](const auto& source) {
             return !source.second.node->unreachable;
           });
  };
  // Differences of more than half the image gain little, and come from fewer nodes than the image does.
  return CheapestPath(catalog_.differences(), held, artifact_id, target->record.image_bytes / 2, has_source);
}

// Replicas in any state hold it: one that fills may be the next copy. So does a node that is away with one:
// it is told to forget it only when it is given up. A difference is worth nothing without its ends.
std::vector<std::string> Directory::ReleasedForGood(SteadyTime now, size_t limit) const {
  std::vector<std::string> found;
  // Else the nodes that were here before the start have not reported yet.
  const bool reported = now >= releases_from_;
  for (const std::string& artifact_id : catalog_.released()) {
    if (found.size() == limit) break;
    const bool held =
        !reported || !inventory_.HoldersOf(artifact_id).empty() || inventory_.IsAwayWith(artifact_id);
    const DifferenceEdge* edge = catalog_.differences().Find(artifact_id);
    // Published again after the metadata was lost, a difference may come before its ends.
    const bool useless =
        edge != nullptr &&
        (reported || (catalog_.Find(edge->base_id) != nullptr && catalog_.Find(edge->target_id) != nullptr));
    if (!held || useless) found.push_back(artifact_id);
  }
  return found;
}

DurableFacts Directory::PrepareReleases(SteadyTime now, absl::Time wall_now) const {
  DurableFacts facts;
  for (const std::string& artifact_id : ReleasedForGood(now, kReleasesAtOnce)) {
    facts.artifacts.push_back(Catalog::ReleaseOf(artifact_id, wall_now));
  }
  return facts;
}

absl::StatusOr<Registration> Directory::RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                                     SteadyTime now) {
  TC_RETURN_IF_ERROR(membership_.CheckRegistration(facts));
  // A higher incarnation: the process before it is gone, and with it what it held and its grants.
  const absl::Status identity = membership_.CheckIdentity({facts.node_id, facts.incarnation});
  if (absl::IsNotFound(identity)) DropNode(facts.node_id, now);
  // The index of sources leaves the node's replicas out while its labels change.
  inventory_.Suspend(facts.node_id);
  Registration registration = membership_.Register(facts, std::move(pools), now);
  inventory_.Admit(*membership_.Find(facts.node_id));
  tasks_.NoteNode(facts.node_id);
  return registration;
}

// Grants first, while both ends can still be told; then its replicas, which are noted as away; then itself.
void Directory::DropNode(const std::string& node_id, SteadyTime now) {
  const Node* node = membership_.Find(node_id);
  if (node == nullptr) return;
  transfers_.EndOfNode(node_id, now);
  inventory_.Remove(*node, now);
  membership_.Remove(node_id);
  tasks_.NoteNodeGone(node_id);
  rollups_.NoteNodeGone(node_id);
  rollouts_.NoteNodeGone(node_id, now);
}

absl::StatusOr<HeartbeatReply> Directory::Heartbeat(const NodeIdentity& identity,
                                                    std::vector<PoolFacts> pools,
                                                    const std::vector<std::string>& active_grants,
                                                    uint64_t inventory_sequence, SteadyTime now,
                                                    const HeldByNode& held) {
  TC_ASSIGN_OR_RETURN(const Node* node, membership_.FindLive(identity));
  const std::string& node_id = identity.node_id;
  transfers_.grants().Renew(node_id, active_grants, now);
  HeartbeatReply reply;
  reply.liveness = membership_.NoteHeartbeat(node_id, std::move(pools), now);
  reply.grant_key_age = now - node->grant_key_given;
  // Before it is asked what is wanted: a difference wants an inventory.
  reply.conservation = Compare(*node, inventory_sequence, held, now);
  reply.inventory_wanted = inventory_.NoteSequence(node_id, inventory_sequence);
  reply.revoked_grants = transfers_.grants().RevokedOf(node_id);
  reply.forgotten_artifacts = inventory_.ForgottenOn(node_id);
  if (node->draining) reply.evict_replicas = evictions_.EvictableOn(node_id);
  return reply;
}

Conservation Directory::Compare(const Node& node, uint64_t sequence, const HeldByNode& held, SteadyTime now) {
  const std::string& node_id = node.facts.node_id;
  Conservation shown;
  if (held.inventory_digest.has_value()) {
    const InventoryMatch match = inventory_.Compare(node_id, sequence, *held.inventory_digest, now);
    const bool differs = match == InventoryMatch::kDiffers || match == InventoryMatch::kBeganToDiffer;
    shown.inventories = match == InventoryMatch::kUnknown ? 0 : 1;
    shown.inventory_violations = differs ? 1 : 0;
    if (match == InventoryMatch::kBeganToDiffer) {
      shown.found.push_back(absl::StrCat("inventory of node ", node.facts.name, " at sequence ", sequence,
                                         ": the node's replicas differ from the ",
                                         inventory_.ReplicasOf(node_id).size(),
                                         " replicas that the global store lists for the node"));
    }
  }
  shown.grants = held.served_grants.size();
  for (const std::string& violation : transfers_.grants().NoteServed(node_id, held.served_grants)) {
    ++shown.grant_violations;
    shown.found.push_back(absl::StrCat("grant that node ", node.facts.name, " serves: ", violation));
  }
  conservation_.inventories += shown.inventories;
  conservation_.grants += shown.grants;
  conservation_.inventory_violations += shown.inventory_violations;
  conservation_.grant_violations += shown.grant_violations;
  if (!shown.found.empty()) conservation_.found = {shown.found.back()};
  return shown;
}

absl::Status Directory::DrainNode(std::string_view node_id, bool draining) {
  TC_RETURN_IF_ERROR(membership_.SetDraining(node_id, draining));
  tasks_.NoteNode(node_id);
  return absl::OkStatus();
}

absl::StatusOr<GrantOffer> Directory::RequestGrant(const GrantRequest& request, SteadyTime now) {
  NoteFills(request, now);
  return transfers_.RequestGrant(request, now);
}

// What the node itself has reported stays.
void Directory::NoteFills(const GrantRequest& request, SteadyTime now) {
  const std::string& node_id = request.receiver.node_id;
  const absl::StatusOr<const Node*> node = membership_.FindLive(request.receiver);
  const Catalog::Artifact* artifact = catalog_.Find(request.artifact_id);
  if (request.fills.empty() || !node.ok() || artifact == nullptr || artifact->record.chunk_bytes == 0) return;
  if (inventory_.Find(node_id, request.fills) != nullptr) return;
  const uint64_t bytes = artifact->record.image_bytes;
  const uint32_t chunks = ChunkCountOf(bytes, artifact->record.chunk_bytes);
  const ReplicaInfo filling{.id = request.fills,
                            .artifact_id = request.artifact_id,
                            .node_id = node_id,
                            .location = request.destination,
                            // A single chunk cannot be read before the replica is ready.
                            .state = chunks > 1 ? ReplicaState::kFilling : ReplicaState::kAllocating,
                            .image_bytes = bytes,
                            .chunks_total = chunks};
  inventory_.AddPublished(node_id, filling);
  if (inventory_.Find(node_id, request.fills) == nullptr) return;  // refused
  transfers_.NoteReported(node_id, {.artifacts = {request.artifact_id}}, now);
  rollups_.Note((*node)->facts, {filling}, now);
  rollouts_.NoteReplica(node_id, filling, now);
}

absl::StatusOr<bool> Directory::UpdateReplicas(const NodeIdentity& node, uint64_t sequence,
                                               const std::vector<ReplicaInfo>& replicas, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(const Node* reporter, membership_.FindLive(node));
  // The inventory changes first: the rooms after it look at what the node holds now.
  const InventoryChange change = inventory_.Update(node.node_id, sequence, replicas);
  transfers_.NoteReported(node.node_id, change, now);
  rollups_.Note(reporter->facts, replicas, now);
  for (const ReplicaInfo& replica : replicas) rollouts_.NoteReplica(node.node_id, replica, now);
  TC_RETURN_IF_ERROR(tasks_.Note(node, EndedBy(tasks_, node.node_id, replicas)));
  return change.inventory_wanted;
}

absl::StatusOr<std::vector<std::string>> Directory::ReconcileInventory(
    const NodeIdentity& node, uint64_t sequence, const std::vector<ReplicaInfo>& replicas, SteadyTime now) {
  TC_RETURN_IF_ERROR(membership_.CheckIdentity(node));
  const bool registered = !inventory_.HasReported(node.node_id);
  InventoryChange change = inventory_.Reconcile(node.node_id, sequence, replicas, now);
  transfers_.NoteReported(node.node_id, change, now);
  if (!change.inventory_wanted) rollouts_.NoteInventory(node.node_id, replicas, now);
  // Followers first: they take tasks back that were never handed out.
  followers_.NoteInventory(node.node_id, registered, now);
  if (!change.inventory_wanted) {
    TC_RETURN_IF_ERROR(tasks_.Note(node, EndedBy(tasks_, node.node_id, replicas)));
  }
  return std::move(change.unknown);
}

void Directory::NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                           std::string_view reason, SteadyTime now) {
  // Silence says nothing of the files, only that the node is not to be asked again for a while.
  if (finding == OriginFinding::kSilent) return membership_.NoteSilent(origin.node_id, now);
  catalog_.NoteOrigin(artifact_id, origin, finding, reason, now);
}

std::vector<NodeView> Directory::Tick(SteadyTime now) {
  std::vector<NodeView> silent = membership_.TakeStock(now);
  // Nodes that went first: what becomes of grants and tasks follows from them.
  for (const NodeView& node : silent) DropNode(node.facts.node_id, now);
  transfers_.Tick(now);
  tasks_.Tick(now);
  inventory_.ExpireAway(now);
  return silent;
}

void Directory::ExtendLiveness(absl::Duration gap) {
  // Nodes get the time again in which they could not be heard, those from before the start, too.
  releases_from_ += gap;
  membership_.ExtendLiveness(gap);
  transfers_.grants().ExtendLiveness(gap);
}

DirectoryCounts Directory::counts() const {
  return {.nodes = membership_.nodes().size(),
          .artifacts = catalog_.artifacts().size() - catalog_.differences().size(),
          .keys = catalog_.live_keys(),
          .replicas = inventory_.size(),
          .active_grants = transfers_.grants().size(),
          .open_tasks = tasks_.CountOpen(),
          .differences = catalog_.kept_differences(),
          .difference_bytes = catalog_.kept_difference_bytes()};
}

}  // namespace tensorcast::global_store
