#include "global_store/metadata/copy.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "global_store/metadata/fact_records.h"

namespace tensorcast::global_store {
namespace {

// A batch is one transaction, of which etcd takes some 128 operations and 1.5 MB; origins make facts large.
constexpr size_t kFactsInABatch = 16;

constexpr std::string_view kKindNames[] = {"artifact ", "key ",      "node ",        "task ",
                                           "cluster ",  "follower ", "announcement "};

std::string NameOf(const Fact& fact) {
  return absl::StrCat(kKindNames[static_cast<size_t>(fact.kind)], fact.name);
}

// Those of `from` that are not in `to`, in the order of their kinds: artifacts before the keys and tasks that
// name them.
absl::StatusOr<std::vector<Fact>> Missing(const DurableFacts& from, const DurableFacts& to) {
  std::map<std::string, std::string> there;
  for (Fact& fact : Encode(to)) there[NameOf(fact)] = std::move(fact.record);
  std::vector<Fact> missing;
  for (Fact& fact : Encode(from)) {
    const auto found = there.extract(NameOf(fact));
    if (found.empty()) {
      missing.push_back(std::move(fact));
    } else if (found.mapped() != fact.record) {
      return absl::FailedPreconditionError(absl::StrCat(
          "copy ", NameOf(fact), ": the target has a different record; copy into an empty target"));
    }
  }
  // What is left in `there` is not in the source: a merge of two clusters is not a copy of one.
  if (there.empty()) return missing;
  return absl::FailedPreconditionError(
      absl::StrCat("copy the metadata: the target holds ", there.begin()->first,
                   ", which the source does not have; copy into an empty target"));
}

// An artifact with its manifest, so that none is there without.
absl::Status WriteArtifact(const Fact& artifact, MetadataStore& from, MetadataStore& to) {
  WriteBatch batch;
  TC_RETURN_IF_ERROR(Decode(artifact.kind, artifact.name, artifact.record, batch.facts));
  std::string manifest;
  if (!artifact.DeletesArtifact()) {
    TC_ASSIGN_OR_RETURN(manifest, from.ReadManifest(artifact.name));
    batch.manifests = {ManifestBlob{.artifact_id = artifact.name, .bytes = manifest}};
  }
  return to.Commit(batch);
}

absl::Status Write(const std::vector<Fact>& facts, MetadataStore& from, MetadataStore& to) {
  WriteBatch batch;
  size_t waiting = 0;
  for (const Fact& fact : facts) {
    // Facts come in the order of their kinds, so every artifact is there before the first batch that names
    // one.
    if (fact.kind == FactKind::kArtifact) {
      TC_RETURN_IF_ERROR(WriteArtifact(fact, from, to));
      continue;
    }
    TC_RETURN_IF_ERROR(Decode(fact.kind, fact.name, fact.record, batch.facts));
    if (++waiting % kFactsInABatch != 0) continue;
    TC_RETURN_IF_ERROR(to.Commit(std::exchange(batch, {})));
  }
  return batch.facts.empty() ? absl::OkStatus() : to.Commit(batch);
}

absl::Status CompareManifests(const DurableFacts& facts, MetadataStore& from, MetadataStore& to,
                              uint64_t& bytes) {
  for (const ArtifactRecord& artifact : facts.artifacts) {
    if (artifact.deleted) continue;
    TC_ASSIGN_OR_RETURN(const std::string original, from.ReadManifest(artifact.artifact_id));
    TC_ASSIGN_OR_RETURN(const std::string copy, to.ReadManifest(artifact.artifact_id));
    if (original != copy) {
      return absl::DataLossError(absl::StrCat("compare the copy of the manifest of ", artifact.artifact_id,
                                              ": the source and the copy differ, so one of them is damaged; "
                                              "copy a sound source into an empty target"));
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
  TC_ASSIGN_OR_RETURN(const std::vector<Fact> missing, Missing(facts, before));
  TC_RETURN_IF_ERROR(Write(missing, from, to));

  TC_ASSIGN_OR_RETURN(const DurableFacts after, to.Load());
  const absl::StatusOr<std::vector<Fact>> lost = Missing(facts, after);
  if (!lost.ok()) return absl::DataLossError(lost.status().message());
  if (!lost->empty()) {
    return absl::DataLossError(absl::StrCat("compare the copy: the target lost ", NameOf(lost->front()),
                                            "; copy into an empty target"));
  }
  CopySummary summary{.artifacts = facts.artifacts.size(),
                      .keys = facts.keys.size(),
                      .nodes = facts.nodes.size(),
                      .tasks = facts.tasks.size(),
                      .written = missing.size()};
  TC_RETURN_IF_ERROR(CompareManifests(facts, from, to, summary.manifest_bytes));
  return summary;
}

}  // namespace tensorcast::global_store
