#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "global_store/metadata/fact_records.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {
namespace {

// Everything is gone with the process. A commit is whole because one lock covers it and nothing in it can
// fail.
class MemoryStore final : public MetadataStore {
 public:
  std::string_view name() const override { return "memory"; }
  absl::Status Check() const override { return absl::OkStatus(); }

  absl::Status Commit(const WriteBatch& batch) override {
    absl::MutexLock lock(&mutex_);
    for (Fact& fact : Encode(batch.facts)) {
      if (fact.DeletesArtifact()) {
        manifests_.erase(fact.name);
        absl::erase_if(facts_, [prefix = TaskPrefix(fact.name)](const auto& kept) {
          return kept.first.first == FactKind::kTask && kept.first.second.starts_with(prefix);
        });
      }
      const std::pair key(fact.kind, fact.name);
      if (fact.forgotten) {
        facts_.erase(key);
      } else {
        facts_.insert_or_assign(key, std::move(fact));
      }
    }
    for (const ManifestBlob& manifest : batch.manifests) manifests_[manifest.artifact_id] = manifest.bytes;
    if (batch.request.has_value()) requests_[batch.request->request] = *batch.request;
    return absl::OkStatus();
  }

  absl::StatusOr<DurableFacts> Load() override {
    absl::MutexLock lock(&mutex_);
    DurableFacts facts;
    for (const auto& [key, fact] : facts_) {
      TC_RETURN_IF_ERROR(Decode(fact.kind, fact.name, fact.record, facts));
    }
    return facts;
  }

  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) override {
    absl::MutexLock lock(&mutex_);
    const auto found = manifests_.find(artifact_id);
    if (found == manifests_.end()) return NoManifest(artifact_id);
    return found->second;
  }

  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override {
    absl::MutexLock lock(&mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) return std::nullopt;
    return found->second.response;
  }

  absl::Status Purge(const PurgeTimes& before) override {
    absl::MutexLock lock(&mutex_);
    absl::erase_if(facts_, [&](const auto& entry) { return entry.second.IsOld(before); });
    absl::erase_if(requests_, [&](const auto& entry) { return entry.second.recorded < before.requests; });
    return absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  absl::btree_map<std::pair<FactKind, std::string>, Fact> facts_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, std::string> manifests_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, RequestRecord> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<MetadataStore> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace tensorcast::global_store
