#include "daemon/keeper/previous_pool.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/ids.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// Kept segments keep their size where the pool has at least kMinSegments of that size and, below
// kSegmentBytes, at most kMaxSmallSegments.
constexpr uint64_t kMinSegments = 4;
constexpr uint64_t kMaxSmallSegments = 32;

constexpr size_t kNamedInErrors = 10;

}  // namespace

PreviousPool::PreviousPool(std::vector<KeptDescriptor> all) {
  for (const KeptDescriptor& kept : all) contents_.names.push_back(kept.name);
  contents_.holders = TakeAttachments(all);
  for (KeptDescriptor& kept : all) Add(std::move(kept));
}

// A name without one of these prefixes is of another version, and is dropped in KeptPool::Attach.
void PreviousPool::Add(KeptDescriptor kept) {
  std::string_view name = kept.name;
  if (absl::ConsumePrefix(&name, kSegmentPrefix)) {
    segments_.push_back({std::string(name), std::move(kept.fd)});
  } else if (absl::ConsumePrefix(&name, kReplicaPrefix)) {
    AddReplica(name, kept.fd.get());
  } else if (absl::ConsumePrefix(&name, kSizePrefix)) {
    if (uint64_t bytes = 0; absl::SimpleAtoi(name, &bytes)) bytes_ = std::max(bytes_, bytes);
  } else if (absl::ConsumePrefix(&name, kGpuPrefix)) {
    ++gone_on_gpus_;
  }
}

void PreviousPool::AddReplica(std::string_view name, int record_file) {
  const auto read = [&]() -> absl::Status {
    TC_ASSIGN_OR_RETURN(const std::string bytes, ReadKept(record_file));
    TC_ASSIGN_OR_RETURN(KeptRecord record, DecodeRecord(bytes));
    absl::StatusOr<std::shared_ptr<const Manifest>> decoded = Manifest::Decode(record.manifest);
    if (!decoded.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(decoded.status().message(), "; get the artifact again"));
    }
    std::shared_ptr<const Manifest> manifest = *std::move(decoded);
    if (manifest->id() != name) {
      return absl::InvalidArgumentError(absl::StrCat("read the kept record of ", name,
                                                     ": the record describes ", manifest->id(),
                                                     "; get the artifact again"));
    }
    contents_.replicas.push_back({std::move(record), std::move(manifest)});
    return absl::OkStatus();
  };
  const absl::Status status = read();
  LOG_IF(WARNING, !status.ok()) << "drop the kept memory of " << name << ": " << status.message();
}

uint64_t PreviousPool::SegmentBytes(uint64_t pool_bytes, uint64_t otherwise) const {
  // The most frequent size counts: the pool's last segment may be a smaller one.
  absl::flat_hash_map<uint64_t, int> segments;
  for (const KeptSegment& segment : segments_) ++segments[KeptBytes(segment.fd.get())];
  const auto max = std::ranges::max_element(segments, {}, [](const auto& size) { return size.second; });
  if (max == segments.end()) return otherwise;
  const uint64_t bytes = max->first;
  const bool good = bytes > 0 && bytes % kGranuleBytes == 0 && bytes <= kSegmentBytes &&
                    pool_bytes / bytes >= kMinSegments && pool_bytes / bytes <= kMaxSmallSegments;
  return good ? bytes : otherwise;
}

std::vector<KeptSegment> PreviousPool::TakeSegments(uint64_t pool_bytes, uint64_t segment_bytes,
                                                    uint64_t max_bytes) {
  absl::flat_hash_map<std::string, uint64_t> bytes;
  // The work has three steps, each with the bytes that the one before left: segments that processes map, room
  // for those which are mapped and do not fit, and then whole replicas.
  for (const KeptSegment& segment : segments_) bytes[segment.name] = KeptBytes(segment.fd.get());
  std::set<std::string> wanted;
  uint64_t wanted_bytes = 0;
  // What is mapped is memory of this host anyway.
  for (const Attachment& holder : contents_.holders) {
    for (const std::string& name : holder.segments) {
      const uint64_t here = bytes[name];
      if (here == 0 || wanted.contains(name)) continue;
      const bool fits = here == segment_bytes || here == pool_bytes % segment_bytes;
      if (!fits || here > max_bytes - wanted_bytes) {
        contents_.outside.emplace(name, here);
        continue;
      }
      wanted.insert(name);
      wanted_bytes += here;
    }
  }
  std::vector<KeptSegment> room = TakeRoom(segment_bytes, max_bytes - wanted_bytes);
  wanted_bytes += room.size() * segment_bytes;

  const auto needs = [](const Replica& found) {
    std::set<std::string> names;
    for (const NamedExtent& extent : found.record.extents) names.insert(extent.segment);
    return names;
  };
  // By the number of segments, so that a replica which is spread over many leaves no room for the others.
  std::ranges::stable_sort(contents_.replicas, {}, [&](const Replica& found) { return needs(found).size(); });
  for (const Replica& found : contents_.replicas) {
    uint64_t more = 0;
    const std::set<std::string> names = needs(found);
    for (const std::string& name : names) more += wanted.contains(name) ? 0 : bytes[name];
    if (more > max_bytes - wanted_bytes) continue;
    wanted.insert(names.begin(), names.end());
    wanted_bytes += more;
  }
  std::vector<KeptSegment> taken;
  for (KeptSegment& segment : segments_) {
    if (wanted.contains(segment.name)) taken.push_back(std::move(segment));
  }
  segments_.clear();
  std::ranges::move(room, std::back_inserter(taken));
  return taken;
}

// Segments without memory, as many as hold what is mapped outside of this pool: the host has that much less.
std::vector<KeptSegment> PreviousPool::TakeRoom(uint64_t segment_bytes, uint64_t max_bytes) {
  uint64_t outside = 0;
  for (const auto& [name, bytes] : contents_.outside) outside += bytes;
  std::vector<KeptSegment> room;
  uint64_t taken = 0;
  for (; taken < outside && segment_bytes <= max_bytes - taken; taken += segment_bytes) {
    contents_.room.push_back(NewUuid());
    room.push_back({contents_.room.back(), UniqueFd()});
  }
  LOG_IF(WARNING, taken < outside) << "Processes still map " << outside
                                   << " bytes of the previous daemon's host pool; until these processes end, "
                                   << outside - taken
                                   << " of these bytes are in addition to daemon.host_pool";
  return room;
}

std::vector<const PreviousPool::Replica*> PreviousPool::FindWithoutRoom(const HostPool& pool) const {
  std::set<std::string> taken;
  for (size_t i = 0; i < pool.segments().size(); ++i) {
    if (pool.kind(i) == SegmentKind::kKept) taken.insert(pool.segment_name(i));
  }
  std::vector<const Replica*> without_room;
  for (const Replica& found : contents_.replicas) {
    const auto is_taken = [&](const NamedExtent& extent) { return taken.contains(extent.segment); };
    if (!std::ranges::all_of(found.record.extents, is_taken)) without_room.push_back(&found);
  }
  return without_room;
}

absl::Status PreviousPool::CheckTakesAll(const HostPool& pool) const {
  const std::vector<const Replica*> lost = FindWithoutRoom(pool);
  // A pool that is as large as before may lack room, too: for what processes still map, and since new staging
  // buffers cannot lie in kept segments. Then the daemon starts, as an unattended restart has to.
  if (lost.empty() || pool.bytes() >= bytes_) return absl::OkStatus();
  uint64_t bytes = 0;
  std::vector<std::string> names;
  for (const Replica* found : lost) {
    bytes += found->manifest->layout().image_bytes;
    if (names.size() < kNamedInErrors) names.push_back(found->manifest->id());
  }
  if (lost.size() > names.size()) names.push_back(absl::StrCat(lost.size() - names.size(), " more"));
  return absl::FailedPreconditionError(
      absl::StrCat("take back the kept host pool: the pool now has ", pool.bytes(), " bytes instead of ",
                   bytes_, ", and no room for ", lost.size(), " of ", contents_.replicas.size(),
                   " kept replicas (", bytes, " bytes: ", absl::StrJoin(names, ", "),
                   "), each of which may be the last copy of its artifact; set daemon.host_pool to the "
                   "previous size, or start with --discard-kept to drop these replicas"));
}

}  // namespace tensorcast::daemon
