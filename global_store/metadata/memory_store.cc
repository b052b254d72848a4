#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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
    for (const ArtifactRecord& record : batch.facts.artifacts) {
      artifacts_[record.artifact_id] = record;
      if (record.deleted) manifests_.erase(record.artifact_id);
    }
    for (const KeyRecord& record : batch.facts.keys) keys_[record.name] = record;
    if (batch.manifest.has_value()) {
      manifests_[batch.manifest->artifact_id] = std::string(batch.manifest->bytes);
    }
    if (batch.request.has_value()) requests_[batch.request->request] = *batch.request;
    return absl::OkStatus();
  }

  absl::StatusOr<DurableFacts> Load() override {
    absl::MutexLock lock(&mutex_);
    DurableFacts facts;
    for (const auto& [id, record] : artifacts_) facts.artifacts.push_back(record);
    for (const auto& [name, record] : keys_) facts.keys.push_back(record);
    return facts;
  }

  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) override {
    absl::MutexLock lock(&mutex_);
    auto found = manifests_.find(artifact_id);
    if (found != manifests_.end()) return found->second;
    return absl::NotFoundError(absl::StrCat("there is no manifest of ", artifact_id));
  }

  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override {
    absl::MutexLock lock(&mutex_);
    auto found = requests_.find(request);
    if (found == requests_.end()) return std::nullopt;
    return found->second.response;
  }

  absl::Status Purge(absl::Time requests_before, absl::Time tombstones_before) override {
    absl::MutexLock lock(&mutex_);
    const auto buried = [&](const auto& entry) {
      return entry.second.deleted && entry.second.updated < tombstones_before;
    };
    absl::erase_if(requests_, [&](const auto& entry) { return entry.second.recorded < requests_before; });
    absl::erase_if(artifacts_, buried);
    absl::erase_if(keys_, buried);
    return absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  absl::btree_map<std::string, ArtifactRecord> artifacts_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, std::string> manifests_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, KeyRecord> keys_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, RequestRecord> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<MetadataStore> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace tensorcast::global_store
