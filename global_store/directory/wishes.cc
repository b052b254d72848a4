// Wishes: what shall be where, kept until it is there. A node is handed its wishes with its heartbeats, all
// that it is to work on each time, so that one that was taken back ends by being left out. What the node
// reports is soft until the caller has made it durable; a store that restarts in between hands the wish out
// again, and a replica that is there already makes it done at once.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// Others say that the request makes no sense there, however often it is made.
bool MayGoBetterAgain(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return false;
    default:
      return true;
  }
}

// What can be told before the node tries.
absl::Status CheckRoom(const NodeFacts& node, const std::vector<PoolFacts>& pools, const Location& location,
                       uint64_t image_bytes) {
  const auto is_it = [&](const DeviceFacts& device) { return device.ordinal == location.device; };
  if (location.kind == LocationKind::kGpu && std::ranges::none_of(node.devices, is_it)) {
    return absl::InvalidArgumentError(absl::StrCat("node ", node.name, " has no ", location.ToString(),
                                                   "; it has ", node.devices.size(), " GPUs"));
  }
  const auto pool = std::ranges::find(pools, location, &PoolFacts::location);
  if (pool == pools.end() || pool->capacity_bytes >= image_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("node ", node.name, " has ", pool->capacity_bytes,
                                                   " bytes for replicas at ", location.ToString(),
                                                   ", and the artifact takes ", image_bytes));
}

}  // namespace

// Every name that is known at this moment, made once for all targets of a request.
class Directory::NodeNames {
 public:
  explicit NodeNames(const Directory& directory) {
    // Those who are alive last: they have the names that others had.
    for (const auto& [place, wish] : directory.wishes_) Add(wish.record.node_id, wish.record.node_name);
    for (const auto& [node_id, name] : directory.names_of_nodes_) Add(node_id, name);
    for (const auto& [node_id, away] : directory.away_) Add(node_id, away.name);
    for (const auto& [node_id, node] : directory.nodes_) Add(node_id, node.facts.name);
  }

  struct Node {
    std::string id;
    std::string name;
  };
  absl::StatusOr<Node> Find(const std::string& node) const {
    const auto named = ids_.find(node);
    const std::string& id = named != ids_.end() ? named->second : node;
    const auto found = names_.find(id);
    if (found != names_.end()) return Node{.id = id, .name = found->second};
    return absl::NotFoundError(
        absl::StrCat("no node is called ", node, ", nor has that id: `tensorcast status` lists them"));
  }

 private:
  void Add(const std::string& id, const std::string& name) {
    ids_[name] = id;
    names_[id] = name;
  }
  absl::flat_hash_map<std::string, std::string> ids_;    // by name
  absl::flat_hash_map<std::string, std::string> names_;  // by id
};

std::string Directory::PlaceOf(const WishRecord& wish) {
  return absl::StrCat(wish.artifact_id, "\n", wish.node_id, "\n", wish.location.ToString());
}

const Directory::HeldReplica* Directory::FindReplicaAt(std::string_view artifact_id,
                                                       const std::string& node_id,
                                                       const Location& location) const {
  const auto holders = holders_.find(artifact_id);
  if (holders == holders_.end()) return nullptr;
  for (auto at = holders->second.lower_bound({node_id, ""});
       at != holders->second.end() && at->first == node_id; ++at) {
    const HeldReplica& held = nodes_.find(node_id)->second.replicas.find(at->second)->second;
    if (held.IsReady() && held.facts.location == location) return &held;
  }
  return nullptr;
}

WishedPlace Directory::PlanWish(const WishRequest& request, const WishTarget& target, const NodeNames& names,
                                absl::Time now, WishPlan& plan) const {
  WishedPlace place{.node_id = target.node};
  const absl::StatusOr<NodeNames::Node> node = names.Find(target.node);
  place.error = node.status();
  if (!node.ok()) return place;
  place.node_id = node->id;
  const auto alive = nodes_.find(node->id);
  if (alive != nodes_.end()) {
    place.error = CheckRoom(alive->second.facts, alive->second.pools, target.location,
                            artifacts_.find(request.artifact_id)->second.record.image_bytes);
  }
  if (!place.error.ok()) return place;
  if (const HeldReplica* replica = FindReplicaAt(request.artifact_id, node->id, target.location)) {
    place.replica_id = replica->facts.id;
    return place;
  }
  WishRecord wish{.wish_id = absl::StrCat(request.request_id, "-", plan.facts.wishes.size()),
                  .artifact_id = request.artifact_id,
                  .node_id = node->id,
                  .location = target.location,
                  .node_name = node->name,
                  .asked_by = request.asked_by,
                  .traceparent = request.traceparent,
                  .created = now,
                  .updated = now};
  const auto before = wishes_.find(PlaceOf(wish));
  if (before != wishes_.end() && Settled(before->second, now).state == WishState::kOpen) {
    place.wish = ViewOf(before->second);
    return place;
  }
  plan.facts.wishes.push_back(wish);
  place.wish = ViewOf(HeldWish{.record = std::move(wish)});
  return place;
}

absl::StatusOr<WishPlan> Directory::PrepareWishes(const WishRequest& request, absl::Time now) const {
  TC_RETURN_IF_ERROR(DescribeArtifact(request.artifact_id).status());
  const NodeNames names(*this);
  WishPlan plan;
  std::map<std::string, size_t> planned;  // what is named twice is one
  for (const WishTarget& target : request.targets) {
    const auto [first, is_new] =
        planned.emplace(absl::StrCat(names.Find(target.node).value_or(NodeNames::Node{.id = target.node}).id,
                                     "\n", target.location.ToString()),
                        plan.places.size());
    plan.places.push_back(is_new ? PlanWish(request, target, names, now, plan) : plan.places[first->second]);
  }
  TC_ASSIGN_OR_RETURN(plan.group, PlanGroup(request, plan));
  return plan;
}

CancelPlan Directory::PrepareCancelWishes(std::string_view artifact_id,
                                          const std::vector<WishTarget>& targets, absl::Time now) const {
  const NodeNames names(*this);
  std::set<std::pair<std::string, Location>> places;
  for (const WishTarget& target : targets) {
    places.emplace(names.Find(target.node).value_or(NodeNames::Node{.id = target.node}).id, target.location);
  }
  CancelPlan plan;
  for (WishView& view : ListWishes(artifact_id, "", wishes_.size())) {
    const bool open = view.progress == WishProgress::kWaiting || view.progress == WishProgress::kRunning;
    if (!open || (!targets.empty() && !places.contains({view.record.node_id, view.record.location}))) {
      continue;
    }
    WishRecord cancelled = view.record;
    cancelled.cancelled = true;
    cancelled.updated = now;
    plan.facts.wishes.push_back(std::move(cancelled));
    plan.wishes.push_back(std::move(view));
  }
  return plan;
}

void Directory::ApplyWish(const WishRecord& record, SteadyTime now) {
  const std::string place = PlaceOf(record);
  if (const auto before = wishes_.find(place);
      before != wishes_.end() && (record.cancelled || before->second.record.wish_id != record.wish_id)) {
    EraseWish(place);
  }
  if (record.cancelled) return;
  const auto open = std::make_pair(record.created, place);
  HeldWish& wish = wishes_[place];
  wish = HeldWish{.record = record};
  wishes_to_settle_.erase(place);
  place_of_wish_[record.wish_id] = place;
  NoteChange(wish);
  if (record.state != WishState::kOpen) {
    if (auto node = open_wishes_.find(record.node_id); node != open_wishes_.end()) {
      node->second.erase(open);
      if (node->second.empty()) open_wishes_.erase(node);
    }
    return;
  }
  open_wishes_[record.node_id].insert(open);
  if (record.failures > 0 && record.failures <= options_.wish_pauses.size()) {
    wish.due = now + options_.wish_pauses[record.failures - 1];
  }
}

void Directory::EraseWish(const std::string& place) {
  const auto wish = wishes_.find(place);
  const WishRecord& record = wish->second.record;
  NoteChange(wish->second, /*gone=*/true);
  place_of_wish_.erase(record.wish_id);
  wishes_to_settle_.erase(place);
  if (auto node = open_wishes_.find(record.node_id); node != open_wishes_.end()) {
    node->second.erase({record.created, place});
    if (node->second.empty()) open_wishes_.erase(node);
  }
  wishes_.erase(wish);
}

void Directory::PurgeWishes(absl::Time before) {
  std::vector<std::string> old;
  for (const auto& [place, wish] : wishes_) {
    if (wish.record.state != WishState::kOpen && wish.record.updated < before) old.push_back(place);
  }
  for (const std::string& place : old) EraseWish(place);
}

void Directory::ReleaseWishes(std::string_view node_id) {
  const auto node = open_wishes_.find(node_id);
  if (node == open_wishes_.end()) return;
  for (const auto& [created, place] : node->second) wishes_.find(place)->second.handed_out = false;
}

void Directory::NoteChange(const HeldWish& wish, bool gone) {
  changed_wishes_[PlaceOf(wish.record)] = {.wish = ViewOf(wish), .gone = gone};
}

void Directory::NoteChanges(std::string_view node_id) {
  const auto node = open_wishes_.find(node_id);
  if (node == open_wishes_.end()) return;
  for (const auto& [created, place] : node->second) NoteChange(wishes_.find(place)->second);
}

std::vector<WishChange> Directory::TakeChangedWishes() {
  std::vector<WishChange> changes;
  for (auto& [place, change] : std::exchange(changed_wishes_, {})) changes.push_back(std::move(change));
  return changes;
}

absl::Status Directory::NoteWishes(const NodeIdentity& identity, const std::vector<WishReport>& reports) {
  TC_RETURN_IF_ERROR(CheckIdentity(identity));
  for (const WishReport& report : reports) {
    const auto place = place_of_wish_.find(report.wish_id);
    if (place == place_of_wish_.end()) continue;
    HeldWish& wish = wishes_.find(place->second)->second;
    if (wish.record.node_id != identity.node_id || wish.record.state != WishState::kOpen ||
        wish.ended.has_value()) {
      continue;
    }
    wish.handed_out = !report.ended.has_value();
    wish.bytes = report.bytes;
    wish.bytes_total = report.bytes_total;
    wish.ended = report.ended;
    if (wish.ended.has_value()) wishes_to_settle_.insert(place->second);
    NoteChange(wish);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WishRecord>> Directory::TakeWishes(const NodeIdentity& identity, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  std::vector<WishRecord> taken;
  const auto open = open_wishes_.find(identity.node_id);
  if (open == open_wishes_.end()) return taken;
  // What the node works on stays with it: one that was made earlier and is due again does not push it out.
  for (const auto& [created, place] : open->second) {
    const HeldWish& wish = wishes_.find(place)->second;
    if (wish.handed_out) taken.push_back(wish.record);
  }
  if (node->draining) return taken;
  const auto take = [&](HeldWish& wish) {
    if (wish.handed_out || wish.ended.has_value() || wish.due > now) return;
    wish.handed_out = true;
    wish.bytes = 0;
    NoteChange(wish);
    taken.push_back(wish.record);
  };
  // A group waits for all of its GPUs.
  for (const auto& [group_id, group] : groups_) {
    if (!group.over.ok()) continue;
    for (const std::string& wish_id : group.plan.wish_ids) {
      const auto place = place_of_wish_.find(wish_id);
      if (place == place_of_wish_.end()) continue;
      HeldWish& wish = wishes_.find(place->second)->second;
      const bool here = wish.record.node_id == identity.node_id;
      if (here && wish.record.state == WishState::kOpen) take(wish);
    }
  }
  for (const auto& [created, place] : open->second) {
    if (taken.size() >= options_.wishes_at_once) break;
    take(wishes_.find(place)->second);
  }
  return taken;
}

WishRecord Directory::Settled(const HeldWish& wish, absl::Time now) const {
  WishRecord record = wish.record;
  if (!wish.ended.has_value()) return record;
  record.updated = now;
  if (wish.ended->ok()) {
    record.state = WishState::kDone;
    record.error = absl::OkStatus();
    return record;
  }
  ++record.failures;
  record.error = *wish.ended;
  const bool last = record.failures > options_.wish_pauses.size() || !MayGoBetterAgain(record.error);
  if (last) record.state = WishState::kFailed;
  return record;
}

DurableFacts Directory::PrepareSettleWishes(absl::Time now) const {
  DurableFacts facts;
  for (const std::string& place : wishes_to_settle_) {
    facts.wishes.push_back(Settled(wishes_.find(place)->second, now));
  }
  return facts;
}

std::string Directory::WhatWishWaitsFor(const WishRecord& wish) const {
  const auto node = nodes_.find(wish.node_id);
  if (node == nodes_.end()) return absl::StrCat("node ", wish.node_name, ", which is away");
  if (node->second.draining) return absl::StrCat("node ", wish.node_name, ", which drains");
  return wish.failures > 0 ? "another attempt, after a pause" : "its turn on its node";
}

WishView Directory::ViewOf(const HeldWish& wish) const {
  WishView view{.record = Settled(wish, wish.record.updated),
                .progress = WishProgress::kWaiting,
                .waiting_for = "",
                .bytes = wish.bytes,
                .bytes_total = wish.bytes_total};
  switch (view.record.state) {
    case WishState::kDone:
      view.progress = WishProgress::kDone;
      return view;
    case WishState::kFailed:
      view.progress = WishProgress::kFailed;
      return view;
    case WishState::kOpen:
      break;
  }
  // One that the node was told of may still be on its way there, and is as good as begun.
  if (wish.handed_out) view.progress = WishProgress::kRunning;
  if (!wish.handed_out) view.waiting_for = WhatWishWaitsFor(view.record);
  return view;
}

std::vector<WishView> Directory::ListWishes(std::string_view artifact_id, std::string_view after,
                                            size_t limit) const {
  std::vector<WishView> views;
  const std::string first = artifact_id.empty() ? "" : absl::StrCat(artifact_id, "\n");
  auto at = after < first ? wishes_.lower_bound(first) : wishes_.upper_bound(after);
  for (; at != wishes_.end() && views.size() < limit; ++at) {
    if (!artifact_id.empty() && at->second.record.artifact_id != artifact_id) break;
    views.push_back(ViewOf(at->second));
  }
  return views;
}

}  // namespace tensorcast::global_store
