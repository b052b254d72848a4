#include <tuple>

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
      // The record stays as a tombstone; its manifest and its tasks go, as in every store.
      if (!record.deleted) continue;
      manifests_.erase(record.artifact_id);
      absl::erase_if(tasks_, [&](const auto& task) { return task.second.artifact_id == record.artifact_id; });
    }
    for (const KeyRecord& record : batch.facts.keys) keys_[record.name] = record;
    for (const NodeBinding& binding : batch.facts.nodes) {
      if (binding.name.empty()) {
        nodes_.erase(binding.node_id);
      } else {
        nodes_[binding.node_id] = binding.name;
      }
    }
    for (const TaskRecord& record : batch.facts.tasks) {
      if (record.cancelled) {
        tasks_.erase(TaskKeyOf(record));
      } else {
        tasks_[TaskKeyOf(record)] = record;
      }
    }
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
    for (const auto& [node_id, name] : nodes_) facts.nodes.push_back({.node_id = node_id, .name = name});
    for (const auto& [place, record] : tasks_) facts.tasks.push_back(record);
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

  absl::Status Purge(const PurgeTimes& before) override {
    absl::MutexLock lock(&mutex_);
    const auto buried = [&](const auto& entry) {
      return entry.second.deleted && entry.second.updated < before.tombstones;
    };
    absl::erase_if(requests_, [&](const auto& entry) { return entry.second.recorded < before.requests; });
    absl::erase_if(artifacts_, [&](const auto& entry) {
      const ArtifactRecord& record = entry.second;
      return record.deleted && record.updated < (record.versioned ? before.versions : before.tombstones);
    });
    absl::erase_if(keys_, buried);
    absl::erase_if(tasks_, [&](const auto& entry) {
      return entry.second.state != TaskState::kOpen && entry.second.updated < before.tasks;
    });
    return absl::OkStatus();
  }

 private:
  using Place = std::tuple<std::string, std::string, Location>;
  static Place TaskKeyOf(const TaskRecord& record) {
    return {record.artifact_id, record.node_id, record.location};
  }

  absl::Mutex mutex_;
  absl::btree_map<std::string, ArtifactRecord> artifacts_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, std::string> manifests_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, KeyRecord> keys_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, std::string> nodes_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<Place, TaskRecord> tasks_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, RequestRecord> requests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<MetadataStore> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace tensorcast::global_store
