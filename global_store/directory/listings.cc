#include "global_store/directory/listings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// Estimates of messages, from above: what their texts have, and room for all numbers and tags.
constexpr size_t kReplicaBytes = 96;
constexpr size_t kArtifactBytes = 96;
constexpr size_t kNodeBytes = 160;
constexpr size_t kPoolBytes = 112;
constexpr size_t kDeviceBytes = 32;
constexpr size_t kFileBytes = 64;
constexpr size_t kTextBytes = 8;  // of one among several

template <class Texts>
size_t SizeOfTexts(const Texts& texts) {
  size_t bytes = 0;
  for (const auto& text : texts) bytes += text.size() + kTextBytes;
  return bytes;
}

size_t SizeOf(const ReplicaInfo& replica) {
  return kReplicaBytes + replica.id.size() + replica.artifact_id.size() + replica.node_id.size() +
         replica.device_uuid.size();
}

size_t SizeOf(const ArtifactView& artifact) {
  size_t bytes = kArtifactBytes + artifact.record.artifact_id.size() + SizeOfTexts(artifact.keys) +
                 SizeOfTexts(artifact.kept_by);
  for (const DifferenceEdge& edge : artifact.differences) {
    bytes += 4 * kTextBytes + edge.artifact_id.size() + edge.base_id.size() + edge.target_id.size();
  }
  for (const Origin& origin : artifact.record.origins) {
    bytes += kTextBytes + origin.node_id.size();
    for (const ObjectIdentity& object : origin.objects) bytes += kFileBytes + object.uri.size();
  }
  return bytes;
}

size_t SizeOf(const NodeView& node) {
  const NodeFacts& facts = node.facts;
  size_t bytes = kNodeBytes + facts.node_id.size() + facts.name.size() + facts.host_id.size() +
                 facts.grpc_address.size() + facts.handle_socket.size() + SizeOfTexts(facts.lanes) +
                 SizeOfTexts(facts.device_lanes) + facts.broadcasts.nccl_version.size() +
                 facts.broadcasts.why_not.size() + facts.unhealthy_devices.size() * kTextBytes +
                 node.pools.size() * kPoolBytes;
  for (const auto& [key, value] : facts.labels) bytes += key.size() + value.size() + 2 * kTextBytes;
  for (const DeviceFacts& device : facts.devices) {
    bytes += kDeviceBytes + device.uuid.size() + device.name.size();
  }
  return bytes;
}

bool WasImportedFrom(const ArtifactRecord& record, std::string_view path) {
  return std::ranges::any_of(record.origins, [&](const Origin& origin) {
    return std::ranges::find(origin.objects, path, &ObjectIdentity::uri) != origin.objects.end();
  });
}

// Takes it from the room that is left; false where there is none. The first entry of a page always has room.
bool Take(size_t& room, size_t bytes, bool first) {
  if (bytes > room && !first) return false;
  room -= std::min(room, bytes);
  return true;
}

// A replica's name in its artifact, as a page token: ids have no line ends.
std::pair<std::string, std::string> SplitName(std::string_view name) {
  return absl::StrSplit(name, absl::MaxSplits('\n', 1));
}

// Null where no node has it. A name goes before an id.
const Node* FindNamedOrById(const Membership& nodes, const std::string& name) {
  const Node* named = nodes.FindNamed(name);
  return named != nullptr ? named : nodes.Find(name);
}

std::vector<DifferenceEdge> DifferencesOf(const Catalog::Artifact& artifact, const Differences& differences) {
  std::vector<DifferenceEdge> edges;
  if (const DifferenceEdge* own = differences.Find(artifact.record.artifact_id)) edges.push_back(*own);
  for (const DifferenceEdge* edge : differences.To(artifact.record.artifact_id)) edges.push_back(*edge);
  return edges;
}

ArtifactView ViewOf(const Catalog::Artifact& artifact, const Directory& directory) {
  const SourceIndex::Scope* sources = directory.inventory().sources().Find(artifact.record.artifact_id);
  return {.record = artifact.record,
          .keys = {artifact.keys.begin(), artifact.keys.end()},
          .kept_by = {artifact.kept_by.begin(), artifact.kept_by.end()},
          .released = artifact.IsReleased(),
          .differences = DifferencesOf(artifact, directory.catalog().differences()),
          // Nothing is counted here: the widest scope of the index has the artifact's id.
          .ready_replicas = sources == nullptr ? 0 : sources->ready.size()};
}

// Those after `after`, into the room that is left of `bytes`, which it takes.
void AddReplicas(const Inventory& inventory, ArtifactView& view, std::string_view after, size_t& bytes) {
  const Inventory::Holders& all = inventory.HoldersOf(view.record.artifact_id);
  // The list begins behind the last replica of the page before, where that page ended among the replicas of
  // this artifact.
  for (auto it = after.empty() ? all.begin() : all.upper_bound(SplitName(after)); it != all.end(); ++it) {
    const ReplicaInfo& replica = inventory.Find(it->first, it->second)->facts;
    if (!Take(bytes, SizeOf(replica), view.replicas.empty())) {
      const ReplicaInfo& last = view.replicas.back();
      view.more_replicas_after = absl::StrCat(last.node_id, "\n", last.id);
      return;
    }
    view.replicas.push_back(replica);
  }
}

}  // namespace

absl::StatusOr<ArtifactView> DescribeArtifact(const Directory& directory, std::string_view artifact_id,
                                              std::string_view after, const PageBounds& bounds) {
  TC_ASSIGN_OR_RETURN(const Catalog::Artifact* artifact, directory.catalog().Get(artifact_id));
  ArtifactView view = ViewOf(*artifact, directory);
  size_t room = bounds.bytes;
  Take(room, SizeOf(view), /*first=*/true);
  AddReplicas(directory.inventory(), view, after, room);
  return view;
}

absl::StatusOr<ArtifactView> SummarizeArtifact(const Directory& directory, std::string_view artifact_id) {
  TC_ASSIGN_OR_RETURN(const Catalog::Artifact* artifact, directory.catalog().Get(artifact_id));
  return ViewOf(*artifact, directory);
}

// The token is an artifact's id, and where its replicas go on that replica's name behind it.
ArtifactPage ListArtifacts(const Directory& directory, std::string_view after, const PageBounds& bounds,
                           const ArtifactFilter& filter) {
  const Catalog::Artifacts& artifacts = directory.catalog().artifacts();
  const Inventory& inventory = directory.inventory();
  const std::pair<std::string_view, std::string_view> token = absl::StrSplit(after, absl::MaxSplits('\n', 1));
  const auto& [last, last_replica] = token;
  ArtifactPage page;
  size_t room = bounds.bytes;
  // The artifact of the token is listed once more where its replicas were cut.
  auto it = last_replica.empty() ? artifacts.upper_bound(last) : artifacts.lower_bound(last);
  for (; it != artifacts.end(); ++it) {
    const Catalog::Artifact& artifact = it->second;
    // An earlier version that a key keeps counts as keyed.
    if (filter.unkeyed_only && artifact.IsWanted()) continue;
    if (artifact.record.created > filter.created_before) continue;
    if (!filter.origin_path.empty() && !WasImportedFrom(artifact.record, filter.origin_path)) continue;
    ArtifactView view = ViewOf(artifact, directory);
    // The first entry always fits, so that each page makes progress.
    const bool full = page.artifacts.size() == bounds.entries;
    if (full || !Take(room, SizeOf(view), page.artifacts.empty())) {
      page.next = page.artifacts.back().record.artifact_id;
      return page;
    }
    if (filter.replicas) AddReplicas(inventory, view, it->first == last ? last_replica : "", room);
    page.artifacts.push_back(std::move(view));
    if (const std::string& more = page.artifacts.back().more_replicas_after; !more.empty()) {
      page.next = absl::StrCat(it->first, "\n", more);
      return page;
    }
  }
  return page;
}

// The nodes come in the order of their ids, which is also that of the token.
NodePage ListNodes(const Membership& nodes, std::string_view after, const PageBounds& bounds,
                   SteadyTime now) {
  NodePage page;
  size_t room = bounds.bytes;
  for (auto it = nodes.nodes().upper_bound(after); it != nodes.nodes().end(); ++it) {
    NodeView view = it->second.View(now);
    if (page.nodes.size() == bounds.entries || !Take(room, SizeOf(view), page.nodes.empty())) {
      page.next = page.nodes.back().facts.node_id;
      return page;
    }
    page.nodes.push_back(std::move(view));
  }
  return page;
}

NodePage FindNodesNamed(const Membership& nodes, const std::set<std::string, std::less<>>& names,
                        std::string_view after, const PageBounds& bounds, SteadyTime now) {
  NodePage page;
  size_t room = bounds.bytes;
  std::string last;  // that is on this page
  // The nodes come in the order of their names, which is also that of the token.
  for (auto name = names.upper_bound(after); name != names.end(); ++name) {
    const Node* live = FindNamedOrById(nodes, *name);
    if (live == nullptr) continue;
    // What is asked for by its name and by its id is listed at the first of the two.
    const std::string& other = *name == live->facts.node_id ? live->facts.name : live->facts.node_id;
    if (other < *name && names.contains(other) && FindNamedOrById(nodes, other) == live) continue;
    NodeView view = live->View(now);
    if (page.nodes.size() == bounds.entries || !Take(room, SizeOf(view), page.nodes.empty())) {
      page.next = last;
      return page;
    }
    last = *name;
    page.nodes.push_back(std::move(view));
  }
  return page;
}

}  // namespace tensorcast::global_store
