#include "core/testing/faulty_store.h"

#include <utility>

#include "base/status.h"

namespace tensorcast::testing {
namespace {

class FaultyWriter final : public PackedWriter {
 public:
  FaultyWriter(std::unique_ptr<PackedWriter> writer, std::shared_ptr<std::atomic<int>> writes_left,
               std::shared_ptr<std::atomic<bool>> fail_commits)
      : writer_(std::move(writer)),
        writes_left_(std::move(writes_left)),
        fail_commits_(std::move(fail_commits)) {}

  absl::Status Write(uint64_t image_offset, std::span<const ConstHostSpan> bytes) override {
    if (*writes_left_ >= 0 && writes_left_->fetch_sub(1) <= 0) {
      *writes_left_ = 0;
      return absl::ResourceExhaustedError("scripted: no space left on device");
    }
    return writer_->Write(image_offset, bytes);
  }

  absl::StatusOr<std::shared_ptr<PackedFile>> Commit(std::shared_ptr<const Manifest> manifest) override {
    if (*fail_commits_) return absl::InternalError("scripted: sync failed");
    return writer_->Commit(std::move(manifest));
  }

 private:
  const std::unique_ptr<PackedWriter> writer_;
  const std::shared_ptr<std::atomic<int>> writes_left_;
  const std::shared_ptr<std::atomic<bool>> fail_commits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWriter>> FaultyStore::Create(const ImageLayout& layout,
                                                                  uint64_t manifest_bytes_max) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<PackedWriter> writer, store_->Create(layout, manifest_bytes_max));
  return std::make_unique<FaultyWriter>(std::move(writer), writes_left_, fail_commits_);
}

}  // namespace tensorcast::testing
