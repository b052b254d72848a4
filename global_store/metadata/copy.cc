#include "global_store/metadata/copy.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/replica/replica.h"

namespace tensorcast::global_store {
namespace {

// A batch is one transaction, of which etcd takes some 128 operations and 1.5 MB; origins make facts large.
constexpr size_t kFactsInABatch = 16;

std::string NameOf(const ArtifactRecord& artifact) { return absl::StrCat("artifact ", artifact.artifact_id); }
std::string NameOf(const KeyRecord& key) { return absl::StrCat("key ", key.name); }
std::string NameOf(const NodeBinding& node) { return absl::StrCat("node ", node.node_id); }
std::string NameOf(const TaskRecord& task) {
  return absl::StrCat("request ", task.artifact_id, " on ", task.node_id, " in ", task.location.ToString());
}

// Those of `from` that are not in `to`.
template <class Fact>
absl::StatusOr<std::vector<Fact>> Missing(const std::vector<Fact>& from, const std::vector<Fact>& to) {
  std::map<std::string, const Fact*> there;
  for (const Fact& fact : to) there[NameOf(fact)] = &fact;
  std::vector<Fact> missing;
  for (const Fact& fact : from) {
    const auto found = there.extract(NameOf(fact));
    if (found.empty()) {
      missing.push_back(fact);
    } else if (*found.mapped() != fact) {
      return absl::FailedPreconditionError(
          absl::StrCat("the target holds another ", NameOf(fact), ": copy into an empty one"));
    }
  }
  if (!there.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the target holds ", there.begin()->first,
                                                      ", which is not in what is copied: copy into an empty "
                                                      "one"));
  }
  return missing;
}

absl::StatusOr<DurableFacts> Missing(const DurableFacts& from, const DurableFacts& to) {
  DurableFacts missing;
  TC_ASSIGN_OR_RETURN(missing.artifacts, Missing(from.artifacts, to.artifacts));
  TC_ASSIGN_OR_RETURN(missing.keys, Missing(from.keys, to.keys));
  TC_ASSIGN_OR_RETURN(missing.nodes, Missing(from.nodes, to.nodes));
  TC_ASSIGN_OR_RETURN(missing.tasks, Missing(from.tasks, to.tasks));
  return missing;
}

template <class Fact>
absl::Status Write(const std::vector<Fact>& facts, std::vector<Fact> DurableFacts::* into,
                   MetadataStore& to) {
  for (size_t begin = 0; begin < facts.size(); begin += kFactsInABatch) {
    const size_t end = std::min(begin + kFactsInABatch, facts.size());
    WriteBatch batch;
    (batch.facts.*into).assign(facts.begin() + begin, facts.begin() + end);
    TC_RETURN_IF_ERROR(to.Commit(batch));
  }
  return absl::OkStatus();
}

// Each with its manifest, so that none is there without.
absl::Status WriteArtifacts(const std::vector<ArtifactRecord>& artifacts, MetadataStore& from,
                            MetadataStore& to) {
  for (const ArtifactRecord& artifact : artifacts) {
    WriteBatch batch{.facts = {.artifacts = {artifact}}};
    std::string manifest;
    if (!artifact.deleted) {
      TC_ASSIGN_OR_RETURN(manifest, from.ReadManifest(artifact.artifact_id));
      batch.manifest = ManifestBlob{.artifact_id = artifact.artifact_id, .bytes = manifest};
    }
    TC_RETURN_IF_ERROR(to.Commit(batch));
  }
  return absl::OkStatus();
}

absl::Status CompareManifests(const DurableFacts& facts, MetadataStore& from, MetadataStore& to,
                              uint64_t& bytes) {
  for (const ArtifactRecord& artifact : facts.artifacts) {
    if (artifact.deleted) continue;
    TC_ASSIGN_OR_RETURN(const std::string original, from.ReadManifest(artifact.artifact_id));
    TC_ASSIGN_OR_RETURN(const std::string copy, to.ReadManifest(artifact.artifact_id));
    if (original != copy) {
      return absl::DataLossError(absl::StrCat("the copy of the manifest of ", artifact.artifact_id,
                                              " differs: copy into an empty target"));
    }
    bytes += copy.size();
  }
  return absl::OkStatus();
}

}  // namespace

// May be repeated after it was cut short: what is there already is left alone, and anything in the target
// that the source does not have is refused. At the end everything is read again and compared.
absl::StatusOr<CopySummary> CopyMetadata(MetadataStore& from, MetadataStore& to) {
  TC_ASSIGN_OR_RETURN(const DurableFacts facts, from.Load());
  TC_ASSIGN_OR_RETURN(const DurableFacts before, to.Load());
  TC_ASSIGN_OR_RETURN(const DurableFacts missing, Missing(facts, before));
  // Artifacts first, since keys and tasks name them.
  TC_RETURN_IF_ERROR(WriteArtifacts(missing.artifacts, from, to));
  TC_RETURN_IF_ERROR(Write(missing.keys, &DurableFacts::keys, to));
  TC_RETURN_IF_ERROR(Write(missing.nodes, &DurableFacts::nodes, to));
  TC_RETURN_IF_ERROR(Write(missing.tasks, &DurableFacts::tasks, to));

  TC_ASSIGN_OR_RETURN(const DurableFacts after, to.Load());
  const absl::StatusOr<DurableFacts> lost = Missing(facts, after);
  if (!lost.ok()) return absl::DataLossError(absl::StrCat("the copy differs: ", lost.status().message()));
  if (!lost->empty()) return absl::DataLossError("the copy is not whole: some of it was not kept");
  CopySummary summary{.artifacts = facts.artifacts.size(),
                      .keys = facts.keys.size(),
                      .nodes = facts.nodes.size(),
                      .tasks = facts.tasks.size(),
                      .written = missing.artifacts.size() + missing.keys.size() + missing.nodes.size() +
                                 missing.tasks.size()};
  TC_RETURN_IF_ERROR(CompareManifests(facts, from, to, summary.manifest_bytes));
  return summary;
}

}  // namespace tensorcast::global_store
