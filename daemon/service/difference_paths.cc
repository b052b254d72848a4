#include "daemon/service/difference_paths.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/difference/difference_artifact.h"
#include "daemon/service/replicas.h"
#include "daemon/sources/difference_provider.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {
namespace {

constexpr Location kDifferencePlace{LocationKind::kCpu};
// Versions that the global store is told of; a node rarely has more of one model.
constexpr size_t kMaxBases = 16;
// The target can still come whole, and from more nodes: a difference with one slow source is not waited for.
constexpr absl::Duration kToFindSource = absl::Seconds(10);
constexpr double kMinBytesPerSecond = 1 << 20;
constexpr absl::Duration kMaxToBring = absl::Minutes(1);

// Of RESOURCE_EXHAUSTED the pool's own words are told.
absl::Status NotBrought(const absl::Status& why) {
  const bool no_room = absl::IsResourceExhausted(why);
  otel::metrics::kDifferencePaths.Add(1, {no_room ? "no_room" : "not_brought"});
  return Annotate(why, "bring the differences");
}

// Ready, or being made.
bool HasArtifact(const std::vector<ReplicaInfo>& replicas, const std::string& artifact_id) {
  return std::ranges::any_of(replicas, [&artifact_id](const ReplicaInfo& replica) {
    return replica.artifact_id == artifact_id &&
           (replica.state == ReplicaState::kReady || replica.state == ReplicaState::kFilling ||
            replica.state == ReplicaState::kAllocating);
  });
}

std::vector<std::string> IdsOf(const std::vector<DifferencePaths::Base>& bases) {
  std::vector<std::string> ids;
  for (const DifferencePaths::Base& base : bases) ids.push_back(base.artifact_id);
  return ids;
}

}  // namespace

std::vector<DifferencePaths::Base> DifferencePaths::FindBases(const std::string& target_id,
                                                              const Manifest* target,
                                                              const std::optional<Location>& only_at) const {
  std::vector<ReplicaInfo> replicas = options_.engine->ListReplicas();
  if (only_at.has_value()) {
    std::erase_if(replicas, [&only_at](const ReplicaInfo& replica) { return replica.location != *only_at; });
  }
  // The get finds the target, or joins the ingest that makes it.
  if (HasArtifact(replicas, target_id)) return {};
  std::erase_if(replicas, [&](const ReplicaInfo& replica) {
    return replica.state != ReplicaState::kReady || replica.location.kind == LocationKind::kDisk ||
           replica.chunks_unverified > 0 ||
           (target != nullptr && replica.image_bytes != target->layout().image_bytes);
  });
  std::ranges::sort(replicas, [](const ReplicaInfo& a, const ReplicaInfo& b) {
    const bool a_on_gpu = a.location.kind == LocationKind::kGpu;
    const bool b_on_gpu = b.location.kind == LocationKind::kGpu;
    return a_on_gpu != b_on_gpu ? b_on_gpu : a.last_used > b.last_used;
  });
  std::vector<Base> bases;
  for (const ReplicaInfo& replica : replicas) {
    if (bases.size() == kMaxBases) break;
    if (std::ranges::find(bases, replica.artifact_id, &Base::artifact_id) != bases.end()) continue;
    const absl::StatusOr<std::shared_ptr<const Manifest>> manifest =
        options_.engine->FindManifest(replica.artifact_id);
    if (manifest.ok() && (*manifest)->kind() == ArtifactKind::kTensors &&
        (target == nullptr || (*manifest)->layout() == target->layout())) {
      bases.push_back({replica.artifact_id, replica.location, replica.leases > 0 || replica.pinned});
    }
  }
  return bases;
}

absl::StatusOr<std::vector<std::shared_ptr<const Manifest>>> DifferencePaths::ManifestsOf(
    const RequestContext& context, const FoundDifferences& found, const Manifest& target) const {
  std::vector<std::shared_ptr<const Manifest>> manifests;
  std::string reached = found.path.front().base_id();
  for (size_t i = 0; i < found.path.size(); ++i) {
    TC_ASSIGN_OR_RETURN(
        std::shared_ptr<const Manifest> manifest,
        FindManifest(context, *options_.engine, *options_.global_store, found.path[i].artifact_id(),
                     i < found.manifests.size() ? found.manifests[i] : ""));
    // The manifests say between which versions they lead. What the global store says of the path is not
    // relied on.
    TC_ASSIGN_OR_RETURN(const DifferenceEnds ends, EndsOf(*manifest));
    if (ends.base != reached) {
      return absl::DataLossError(absl::StrCat(
          "difference ", manifest->id(), " has base ", ends.base, ", but the differences before it lead to ",
          reached, "; no action is needed, this node gets the whole image instead"));
    }
    reached = ends.target;
    manifests.push_back(std::move(manifest));
  }
  if (reached == target.id()) return manifests;
  return absl::DataLossError(absl::StrCat("the differences lead to ", reached, ", not to ", target.id(),
                                          "; no action is needed, this node gets the whole image instead"));
}

absl::Status DifferencePaths::Bring(const RequestContext& context,
                                    const std::vector<std::shared_ptr<const Manifest>>& differences) const {
  uint64_t bytes = 0;
  for (const auto& difference : differences) bytes += difference->layout().image_bytes;
  RequestContext bounded = context;
  bounded.deadline = std::min(
      context.deadline,
      SteadyNow() + std::min(kMaxToBring,
                             kToFindSource + absl::Seconds(static_cast<double>(bytes) / kMinBytesPerSecond)));
  // All at once; those that are left are cancelled with the first failure.
  std::vector<std::unique_ptr<PendingReplica>> pending;
  for (const std::shared_ptr<const Manifest>& difference : differences) {
    TC_ASSIGN_OR_RETURN(
        pending.emplace_back(),
        options_.engine->Ingest(
            bounded, {.manifest = difference,
                      .location = kDifferencePlace,
                      .sources = options_.sources->Find(
                          {.manifest = difference, .destination = kDifferencePlace, .lane = ""})}));
  }
  for (const std::unique_ptr<PendingReplica>& one : pending) {
    // The lease ends at once: only the ingest of the target, once it has its memory, takes one again.
    TC_RETURN_IF_ERROR(Await(bounded, *one, /*on_progress=*/nullptr).status());
  }
  return absl::OkStatus();
}

std::optional<FoundDifferences> DifferencePaths::Look(const RequestContext& context,
                                                      const std::string& target_id,
                                                      std::string* manifest) const {
  const std::vector<Base> bases = FindBases(target_id, /*target=*/nullptr, /*only_at=*/std::nullopt);
  // Of more images some were left out: which of them can be a base is known with the layout.
  if (bases.empty() || bases.size() == kMaxBases) return std::nullopt;
  absl::StatusOr<FoundDifferences> found =
      options_.global_store->FindDifferences(context, target_id, IdsOf(bases), manifest);
  if (!found.ok()) return std::nullopt;
  return *std::move(found);
}

// Whatever fails here leaves the target to its other sources. `path.unused` tells the report of the transfer
// why a path that was found is not used.
DifferencePaths::Prepared DifferencePaths::Prepare(const RequestContext& context,
                                                   const std::shared_ptr<const Manifest>& target,
                                                   std::shared_ptr<SourceProvider> others,
                                                   const std::optional<WantedAdvance>& wanted,
                                                   std::optional<FoundDifferences> known) const {
  const auto advance = [&wanted](const std::string& base_id) {
    return wanted.has_value() ? std::make_shared<Advance>(base_id, wanted->required) : nullptr;
  };
  if (target->kind() != ArtifactKind::kTensors) return {.sources = std::move(others), .advance = nullptr};
  std::optional<Location> only_at;
  if (wanted.has_value()) only_at = wanted->location;
  const std::vector<Base> bases = FindBases(target->id(), target.get(), only_at);
  if (bases.empty()) return {.sources = std::move(others), .advance = nullptr};
  const auto find_base = [&bases](const FoundDifferences& one) {
    return std::ranges::find(bases, one.path.front().base_id(), &Base::artifact_id);
  };
  // What was asked before the layout was known may begin at an image that cannot be a base.
  if (known.has_value() && !known->path.empty() && find_base(*known) == bases.end()) known.reset();
  const absl::StatusOr<FoundDifferences> found =
      known.has_value()
          ? *std::move(known)
          : options_.global_store->FindDifferences(context, target->id(), IdsOf(bases), /*manifest=*/nullptr);
  if (!found.ok()) VLOG(1) << "get " << target->id() << ": no differences were found: " << found.status();
  if (!found.ok() || found->path.empty()) {
    // Nothing says that one of these images is an earlier version of the target: another model may have the
    // same tensors. So only a request that asks for it writes over one, which is idle and was not used for
    // longest. If none is idle, the refusal names one.
    const auto idle = std::ranges::find(bases.rbegin(), bases.rend(), false, &Base::in_use);
    std::shared_ptr<Advance> over =
        advance(idle != bases.rend() ? idle->artifact_id : bases.back().artifact_id);
    if (over != nullptr && !over->required()) over.reset();
    return {.sources = std::move(others), .advance = std::move(over)};
  }
  // The path tells which version to write over. A replica of the target elsewhere on this node is nearer than
  // the differences.
  if (wanted.has_value() && HasArtifact(options_.engine->ListReplicas(), target->id())) {
    return {.sources = std::move(others), .advance = advance(found->path.front().base_id())};
  }
  DifferencePath path{.base_id = found->path.front().base_id()};
  if (const auto base = find_base(*found); base != bases.end()) path.base_location = base->location;
  path.advance = advance(path.base_id);
  const std::shared_ptr<Advance> advanced = path.advance;
  const auto by = [&](DifferencePath chosen) -> Prepared {
    return {.sources = MakeDifferenceProvider(options_.engine, options_.devices, target, std::move(chosen),
                                              std::move(others)),
            .advance = advanced};
  };
  std::vector<std::string> ids;
  for (const v1::Difference& difference : found->path) ids.push_back(difference.artifact_id());
  const auto wrong = std::ranges::find_if(ids, [this](const auto& id) { return wrong_->Contains(id); });
  if (wrong != ids.end()) {
    otel::metrics::kDifferencePaths.Add(1, {"damaged"});
    path.unused = absl::DataLossError(absl::StrCat(
        "use difference ", *wrong,
        ": the difference made wrong bytes on this node; no action is needed, this node gets the whole "
        "image instead"));
    return by(std::move(path));
  }
  path.on_made_wrong = [wrong = wrong_, ids] { wrong->Note(ids); };
  absl::StatusOr<std::vector<std::shared_ptr<const Manifest>>> differences =
      ManifestsOf(context, *found, *target);
  path.unused = differences.status();
  if (differences.ok()) {
    path.differences = *std::move(differences);
    // So that a difference does not take the room of its base. It ends before the target needs room.
    const absl::StatusOr<std::unique_ptr<ReplicaLease>> held =
        options_.engine->LeaseArtifact(path.base_id, path.base_location);
    path.unused = held.ok() ? Bring(context, path.differences) : held.status();
  }
  if (!path.unused.ok()) path.unused = NotBrought(path.unused);
  return by(std::move(path));
}

}  // namespace tensorcast::daemon
