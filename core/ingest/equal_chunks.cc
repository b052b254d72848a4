#include "core/ingest/equal_chunks.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/replica/availability.h"
#include "core/source/mapped_source.h"

namespace tensorcast {
namespace {

// So that the look-up stays far below the time of moving the chunks, on a node with ever so many artifacts.
constexpr uint64_t kLookUpsPerChunk = 256;
// More replicas at once add little: versions of one model mostly have the same chunks.
constexpr size_t kMaxSources = 4;
constexpr uint32_t kNone = UINT32_MAX;

struct Match {
  uint32_t wanted = 0;  // chunk of the artifact that is made
  uint32_t equal = 0;   // and of the other one
};

// The wanted chunks by their digest. BLAKE3, by a hash with a seed of this process: a manifest from elsewhere
// can be made so that XXH3 collides.
class WantedChunks {
 public:
  WantedChunks(const Manifest& manifest, const std::optional<std::vector<uint32_t>>& chunks)
      : manifest_(manifest),
        count_(chunks.has_value() ? chunks->size() : manifest.layout().chunk_count()),
        look_ups_left_(kLookUpsPerChunk * count_),
        next_(manifest.layout().chunk_count(), kNone) {
    // Wanted chunks with the same digests form a list: `first_` has its head, `next_` the others.
    first_.reserve(count_);
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t chunk = chunks.has_value() ? (*chunks)[i] : i;
      const auto [known, is_new] = first_.try_emplace(KeyOf(manifest, chunk), chunk);
      if (is_new || manifest.digests()[known->second] != manifest.digests()[chunk]) continue;
      next_[chunk] = std::exchange(next_[known->second], chunk);
    }
  }

  uint32_t count() const { return count_; }

  // Each wanted chunk once. None where that would be more look-ups than these chunks are worth.
  std::vector<Match> FindIn(const Manifest& other) {
    std::vector<Match> matches;
    const uint32_t chunks = other.layout().chunk_count();
    if (chunks > look_ups_left_) return matches;
    look_ups_left_ -= chunks;
    std::vector<bool> matched(next_.size());
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const auto found = first_.find(KeyOf(other, chunk));
      if (found == first_.end()) continue;
      const uint32_t first = found->second;
      if (matched[first] || manifest_.digests()[first] != other.digests()[chunk] ||
          manifest_.layout().chunk(first).bytes != other.layout().chunk(chunk).bytes) {
        continue;
      }
      matched[first] = true;
      for (uint32_t wanted = first; wanted != kNone; wanted = next_[wanted]) {
        matches.push_back({.wanted = wanted, .equal = chunk});
      }
    }
    return matches;
  }

 private:
  static std::string_view KeyOf(const Manifest& manifest, uint32_t chunk) {
    const auto& bytes = manifest.digests()[chunk].blake3->bytes;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  const Manifest& manifest_;
  const uint32_t count_;
  uint64_t look_ups_left_;
  absl::flat_hash_map<std::string_view, uint32_t> first_;
  std::vector<uint32_t> next_;  // with the same digests
};

// Of a replica that lives as long as the source: its chunk equal[i] for chunk i of the artifact.
std::unique_ptr<ChunkSource> MakeEqualSource(std::shared_ptr<ReplicaLease> lease, const ImageLayout& layout,
                                             std::vector<uint32_t> equal, int copy_threads) {
  auto has = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  for (uint32_t chunk = 0; chunk < equal.size(); ++chunk) {
    if (equal[chunk] != kNone) has->Add(chunk);
  }
  has->End(absl::OkStatus());
  SourceInfo info;
  info.type = SourceType::kLocal;
  info.lane = kEqualLane;
  info.name = lease->manifest()->id();
  info.made_by = lease->made_by();
  info.replica_id = lease->replica_id();
  // An ingest reads within one chunk.
  ImageSpans spans = [lease = std::move(lease), equal = std::move(equal), chunk_bytes = layout.chunk_bytes](
                         uint64_t offset, uint64_t bytes) {
    return lease->HostSpans(equal[offset / chunk_bytes] * chunk_bytes + offset % chunk_bytes, bytes);
  };
  return MakeMappedSource(std::move(info), layout.image_bytes, std::move(spans), copy_threads, std::move(has),
                          /*page_locked=*/true);
}

}  // namespace

// No lock is held over the look-up: the table gives manifests, and a replica is leased only when its chunks
// were found. Called again after its sources have ended, it tries the replicas that it has not used.
NodeProvider::Given EqualChunks::Next(const RequestContext& /*context*/) {
  const Manifest& manifest = *options_.manifest;
  WantedChunks wanted(manifest, options_.chunks);
  struct Candidate {
    ReplicaTable::ReadyReplica replica;
    std::vector<Match> matches;
  };
  std::vector<Candidate> candidates;
  for (ReplicaTable::ReadyReplica& replica :
       options_.table->FindReady(Location{LocationKind::kCpu}, manifest.layout().chunk_bytes)) {
    if (replica.manifest->id() == manifest.id() || tried_.contains(replica.id)) continue;
    std::vector<Match> matches = wanted.FindIn(*replica.manifest);
    if (!matches.empty()) candidates.push_back({std::move(replica), std::move(matches)});
  }
  // The replica with the largest part first, so that few sources give much.
  std::ranges::stable_sort(candidates, std::ranges::greater(),
                           [](const Candidate& candidate) { return candidate.matches.size(); });
  Given given;
  std::vector<bool> found(manifest.layout().chunk_count());
  uint32_t found_count = 0;
  for (Candidate& candidate : candidates) {
    if (given.sources.size() == kMaxSources) break;
    std::erase_if(candidate.matches, [&found](const Match& match) { return found[match.wanted]; });
    if (candidate.matches.empty()) continue;
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease =
        options_.table->Lease(candidate.replica.id, ReplicaTable::LeaseOf::kReady);
    if (!lease.ok()) continue;  // evicted meanwhile
    tried_.insert(candidate.replica.id);
    // Each chunk comes from one replica, though others have an equal one, too.
    std::vector<uint32_t> equal(found.size(), kNone);
    for (const Match& match : candidate.matches) {
      equal[match.wanted] = match.equal;
      found[match.wanted] = true;
    }
    found_count += candidate.matches.size();
    given.sources.push_back(
        MakeEqualSource(*std::move(lease), manifest.layout(), std::move(equal), options_.copy_threads));
  }
  given.whole = found_count == wanted.count();
  return given;
}

void EqualChunks::Ended(const SourceFailure& failure) {
  if (!failure.corrupt) return;
  // Its own manifest promises the same bytes.
  const absl::Status withdrawn = options_.table->Withdraw(failure.source.replica_id);
  LOG(ERROR) << "read replica " << failure.source.replica_id << " of " << failure.source.name
             << ": the bytes do not match the manifest (" << failure.status << "); "
             << (withdrawn.ok() ? "the replica is withdrawn"
                                : absl::StrCat("the replica cannot be withdrawn: ", withdrawn.ToString()));
}

}  // namespace tensorcast
