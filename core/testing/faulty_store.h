// An artifact store with writes or commits that fail when a test says so. Passes all other calls on to
// another store.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>

#include "core/disk/artifact_store.h"

namespace tensorcast::testing {

class FaultyStore final : public ArtifactStore {
 public:
  explicit FaultyStore(std::shared_ptr<ArtifactStore> store) : store_(std::move(store)) {}

  // Writes fail with RESOURCE_EXHAUSTED after this many more; negative: never.
  void FailWritesAfter(int writes) { *writes_left_ = writes; }
  // Commit fails with INTERNAL.
  void FailCommits(bool fail) { *fail_commits_ = fail; }

  std::vector<std::shared_ptr<PackedFile>> List() const override { return store_->List(); }
  absl::StatusOr<std::shared_ptr<PackedFile>> Find(std::string_view artifact_id) const override {
    return store_->Find(artifact_id);
  }
  absl::StatusOr<std::unique_ptr<PackedWriter>> Create(const ImageLayout& layout,
                                                       uint64_t manifest_bytes_max) override;
  absl::Status Remove(std::string_view artifact_id) override { return store_->Remove(artifact_id); }
  void CloseLost(std::string_view artifact_id) override { store_->CloseLost(artifact_id); }
  void ForgetRemovedDamage() override { store_->ForgetRemovedDamage(); }
  DiskUsage Usage() const override { return store_->Usage(); }
  std::vector<DamagedFile> Damaged() const override { return store_->Damaged(); }
  void NoteDamaged(std::string_view artifact_id, const absl::Status& error) override {
    store_->NoteDamaged(artifact_id, error);
  }

 private:
  const std::shared_ptr<ArtifactStore> store_;
  const std::shared_ptr<std::atomic<int>> writes_left_ = std::make_shared<std::atomic<int>>(-1);
  const std::shared_ptr<std::atomic<bool>> fail_commits_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tensorcast::testing
