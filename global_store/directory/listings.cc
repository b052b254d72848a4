// Listings in pages, bounded in bytes: a page is made with the directory locked, and is one message.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

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

}  // namespace

ArtifactView Directory::ViewOf(const ArtifactState& artifact) const {
  ArtifactView view{.record = artifact.record,
                    .keys = {artifact.keys.begin(), artifact.keys.end()},
                    .kept_by = {artifact.kept_by.begin(), artifact.kept_by.end()},
                    .released = IsReleased(artifact)};
  // The widest scope of the index has the artifact's id: nothing is counted here.
  const auto sources = sources_.find(artifact.record.artifact_id);
  if (sources != sources_.end()) view.ready_replicas = sources->second.ready.size();
  return view;
}

void Directory::AddReplicas(ArtifactView& view, std::string_view after, size_t& bytes) const {
  const auto holders = holders_.find(view.record.artifact_id);
  if (holders == holders_.end()) return;
  const HolderSet& all = holders->second;
  for (auto it = after.empty() ? all.begin() : all.upper_bound(SplitName(after)); it != all.end(); ++it) {
    const ReplicaInfo& replica = nodes_.find(it->first)->second.replicas.find(it->second)->second.facts;
    if (!Take(bytes, SizeOf(replica), view.replicas.empty())) {
      const ReplicaInfo& last = view.replicas.back();
      view.more_replicas_after = absl::StrCat(last.node_id, "\n", last.id);
      return;
    }
    view.replicas.push_back(replica);
  }
}

absl::StatusOr<ArtifactView> Directory::DescribeArtifact(std::string_view artifact_id, std::string_view after,
                                                         const PageBounds& bounds) const {
  auto found = artifacts_.find(artifact_id);
  if (found == artifacts_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no artifact ", artifact_id));
  }
  ArtifactView view = ViewOf(found->second);
  size_t room = bounds.bytes;
  Take(room, SizeOf(view), /*first=*/true);
  AddReplicas(view, after, room);
  return view;
}

// The token is an artifact's id, and where its replicas go on that replica's name behind it.
ArtifactPage Directory::ListArtifacts(std::string_view after, const PageBounds& bounds,
                                      const ArtifactFilter& filter) const {
  const std::pair<std::string_view, std::string_view> token = absl::StrSplit(after, absl::MaxSplits('\n', 1));
  const auto& [last, last_replica] = token;
  ArtifactPage page;
  size_t room = bounds.bytes;
  auto it = last_replica.empty() ? artifacts_.upper_bound(last) : artifacts_.lower_bound(last);
  for (; it != artifacts_.end(); ++it) {
    const ArtifactState& artifact = it->second;
    const bool unkeyed = artifact.keys.empty() && artifact.kept_by.empty();
    if (filter.unkeyed_only && !unkeyed) continue;
    if (artifact.record.created > filter.created_before) continue;
    if (!filter.origin_path.empty() && !WasImportedFrom(artifact.record, filter.origin_path)) continue;
    ArtifactView view = ViewOf(artifact);
    const bool full = page.artifacts.size() == bounds.entries;
    if (full || !Take(room, SizeOf(view), page.artifacts.empty())) {
      page.next = page.artifacts.back().record.artifact_id;
      return page;
    }
    if (filter.replicas) AddReplicas(view, it->first == last ? last_replica : "", room);
    page.artifacts.push_back(std::move(view));
    if (const std::string& more = page.artifacts.back().more_replicas_after; !more.empty()) {
      page.next = absl::StrCat(it->first, "\n", more);
      return page;
    }
  }
  return page;
}

NodePage Directory::ListNodes(std::string_view after, const PageBounds& bounds, SteadyTime now) const {
  NodePage page;
  size_t room = bounds.bytes;
  for (auto it = nodes_.upper_bound(after); it != nodes_.end(); ++it) {
    NodeView view = ViewOf(it->second, now);
    if (page.nodes.size() == bounds.entries || !Take(room, SizeOf(view), page.nodes.empty())) {
      page.next = page.nodes.back().facts.node_id;
      return page;
    }
    page.nodes.push_back(std::move(view));
  }
  return page;
}

NodePage Directory::FindNodesNamed(const std::set<std::string, std::less<>>& names, std::string_view after,
                                   const PageBounds& bounds, SteadyTime now) const {
  NodePage page;
  size_t room = bounds.bytes;
  for (auto name = names.upper_bound(after); name != names.end(); ++name) {
    const auto live = live_names_.find(*name);
    if (live == live_names_.end()) continue;
    NodeView view = ViewOf(nodes_.find(live->second)->second, now);
    if (page.nodes.size() == bounds.entries || !Take(room, SizeOf(view), page.nodes.empty())) {
      page.next = page.nodes.back().facts.name;
      return page;
    }
    page.nodes.push_back(std::move(view));
  }
  return page;
}

uint64_t Directory::CountDraining() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(nodes_, [](const auto& node) { return node.second.draining; }));
}

}  // namespace tensorcast::global_store
