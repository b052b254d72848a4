#include "global_store/transfers/waits.h"

#include <algorithm>

namespace tensorcast::global_store {
namespace {

// So many nodes on the way from a replica that fills to one that is ready.
constexpr size_t kFarthest = 48;
// A node that was told where to fill from, or that has read its files, reports its replica within that time.
constexpr absl::Duration kReportTime = absl::Seconds(5);
// Before a node that could not read its files (no room for them, perhaps) is asked to again.
constexpr absl::Duration kPauseAfterFailure = absl::Seconds(5);

}  // namespace

bool Waits::FillsAt(std::string_view artifact_id, std::string_view node_id) const {
  const auto fills = [](const HeldReplica& replica) { return replica.IsFilling(); };
  return inventory_.FindOf(artifact_id, node_id, fills) != nullptr;
}

const Waits::Waiting* Waits::Find(std::string_view artifact_id, std::string_view node_id,
                                  SteadyTime now) const {
  const auto artifact = waiting_.find(artifact_id);
  if (artifact == waiting_.end()) return nullptr;
  const auto waiting = artifact->second.find(node_id);
  if (waiting == artifact->second.end()) return nullptr;
  const bool waits = waiting->second.until > now || FillsAt(artifact_id, node_id);
  return waits ? &waiting->second : nullptr;
}

void Waits::End(std::string_view artifact_id, std::string_view node_id) {
  const auto artifact = waiting_.find(artifact_id);
  if (artifact == waiting_.end()) return;
  if (const auto node = artifact->second.find(node_id); node != artifact->second.end()) {
    artifact->second.erase(node);
  }
  if (artifact->second.empty()) waiting_.erase(artifact);
}

void Waits::NoteFills(const std::string& artifact_id, const std::string& node_id, SteadyTime now) {
  beginning_[artifact_id][node_id] = now + kReportTime;
}

void Waits::NoteReported(std::string_view artifact_id, const std::string& node_id) {
  const auto beginning = beginning_.find(artifact_id);
  if (beginning == beginning_.end()) return;
  beginning->second.erase(node_id);
  if (beginning->second.empty()) beginning_.erase(beginning);
}

const Waits::Beginning& Waits::BeginningOf(std::string_view artifact_id) const {
  static const Beginning kNone;
  const auto beginning = beginning_.find(artifact_id);
  return beginning == beginning_.end() ? kNone : beginning->second;
}

void Waits::NoteReading(const std::string& artifact_id, const std::string& node_id, const absl::Status& read,
                        SteadyTime now) {
  ReadingOf(artifact_id, node_id) = {.error = std::string(read.message()),
                                     .until = now + (read.ok() ? kReportTime : kPauseAfterFailure)};
}

uint32_t Waits::NoteReads(const std::string& artifact_id, const std::string& node_id, SteadyTime now) {
  auto& readers = readers_[artifact_id];
  if (const auto reader = readers.find(node_id); reader != readers.end()) {
    reader->second.until = now + kReportTime;
    return reader->second.share;
  }
  // A reader that stopped leaves its share to the next one, even before Tick removes the reader.
  const auto has = [&](uint32_t share) {
    return std::ranges::any_of(readers, [&](const auto& reader) {
      return reader.second.share == share && Reads(artifact_id, reader.first, now);
    });
  };
  uint32_t share = 0;
  while (share < kMaxReaders && has(share)) ++share;
  if (share < kMaxReaders) readers[node_id] = {.share = share, .until = now + kReportTime};
  return share;
}

void Waits::EndReads(std::string_view artifact_id, std::string_view node_id) {
  const auto readers = readers_.find(artifact_id);
  if (readers == readers_.end()) return;
  if (const auto reader = readers->second.find(node_id); reader != readers->second.end()) {
    readers->second.erase(reader);
  }
  if (readers->second.empty()) readers_.erase(readers);
}

bool Waits::Reads(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const {
  const auto readers = readers_.find(artifact_id);
  if (readers == readers_.end()) return false;
  const auto reader = readers->second.find(node_id);
  return reader != readers->second.end() && (reader->second.until > now || FillsAt(artifact_id, node_id));
}

bool Waits::HasOwnWay(std::string_view artifact_id, const Node& node, SteadyTime now) const {
  const std::string& node_id = node.facts.node_id;
  const Beginning& beginning = BeginningOf(artifact_id);
  if (const auto begins = beginning.find(node_id); begins != beginning.end() && begins->second > now) {
    return true;
  }
  if (const auto artifact = readings_.find(artifact_id); artifact != readings_.end()) {
    const auto reading = artifact->second.find(node_id);
    if (reading != artifact->second.end() && reading->second.IsUnderWay(now)) return true;
  }
  // A replica that fills without grants and without a wait is filled from local data.
  const auto is_whole = [](const HeldReplica& replica) { return !replica.IsPartial(); };
  return inventory_.FindOf(artifact_id, node_id, is_whole) != nullptr;
}

// Depth first along the grants, oldest first: the oldest grants of a node lead to nodes that began before it.
// A search ends after kFarthest nodes, and the node then counts as not rooted. Such a node only comes after
// other sources, which does no harm among so many.
bool Waits::IsRooted(const Node& node, std::string_view artifact_id, Search& search) const {
  if (search.rooted.contains(&node)) return true;
  if (Reads(artifact_id, node.facts.node_id, search.now)) {
    search.rooted.insert(&node);
    return true;
  }
  if (search.seen.size() == kFarthest || !search.seen.insert(&node).second) return false;
  bool pulls = false;
  bool rooted = false;
  for (const Grant* grant : grants_.Of(node.facts.node_id).receiving) {
    if (grant->artifact_id != artifact_id) continue;
    pulls = true;
    // A way through the receiver itself would close a circle of waits.
    if (grant->source_node == search.receiver->facts.node_id) continue;
    const HeldReplica& replica = *inventory_.Find(grant->source_node, grant->replica_id);
    rooted = replica.IsSource() ||
             (!replica.IsPartial() && IsRooted(*nodes_.Find(grant->source_node), artifact_id, search));
    if (rooted) break;
  }
  // A node that pulls is judged by its grants alone, whatever it was told to wait for.
  if (!pulls) rooted = LeadsOn(node, artifact_id, search);
  if (rooted) search.rooted.insert(&node);
  return rooted;
}

// It has its own way to the bytes, unless it was told to wait: then one of those that it waits for has to
// lead to them.
bool Waits::LeadsOn(const Node& node, std::string_view artifact_id, Search& search) const {
  const Waiting* waiting = Find(artifact_id, node.facts.node_id, search.now);
  if (waiting == nullptr) return HasOwnWay(artifact_id, node, search.now);
  return waiting->reports || std::ranges::any_of(waiting->nodes, [&](const std::string& node_id) {
           const Node* found = nodes_.Find(node_id);
           return found != nullptr && found != search.receiver && IsRooted(*found, artifact_id, search);
         });
}

void Waits::Tick(SteadyTime now) {
  absl::erase_if(beginning_, [&](auto& entry) {
    std::erase_if(entry.second, [&](const auto& node) { return node.second <= now; });
    return entry.second.empty();
  });
  absl::erase_if(readers_, [&](auto& entry) {
    std::erase_if(entry.second, [&](const auto& node) { return !Reads(entry.first, node.first, now); });
    return entry.second.empty();
  });
  absl::erase_if(waiting_, [&](auto& entry) {
    std::erase_if(entry.second, [&](const auto& node) {
      return node.second.until <= now && !FillsAt(entry.first, node.first);
    });
    return entry.second.empty();
  });
}

}  // namespace tensorcast::global_store
