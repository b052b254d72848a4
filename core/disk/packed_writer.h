// Writes one packed file under a temporary name. ArtifactStore renames the file. Internal to this folder.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/artifact/manifest.h"
#include "core/disk/packed_format.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

inline constexpr std::string_view kPartialExtension = ".partial";

// A partial file. It is locked during the lifetime of its writer, so that a clean-up can distinguish it from
// the file of a dead process. The destructor removes the file unless Rename succeeded.
class PartialFile {
 public:
  // Reserves the space for an image behind a manifest of at most `manifest_bytes_max` bytes.
  // RESOURCE_EXHAUSTED if the disk has too little space.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Create(const std::string& directory,
                                                             uint64_t image_bytes,
                                                             uint64_t manifest_bytes_max);
  ~PartialFile();

  // Thread-safe for ranges that do not overlap.
  absl::Status WriteImage(uint64_t image_offset, std::span<const ConstHostSpan> bytes);
  // Writes header and manifest, and syncs the file. FAILED_PRECONDITION if the image was not written
  // completely.
  absl::Status Finish(std::string_view manifest);
  absl::Status Rename(const std::string& path);

  const std::string& path() const { return path_; }           // "" once renamed
  uint64_t written_bytes() const { return written_.load(); }  // bytes of the image written so far
  uint64_t image_offset() const { return header_.image_offset; }

 private:
  PartialFile(std::string path, UniqueFd fd, const PackedHeader& header);

  absl::Status Reserve();
  absl::Status WriteAll(bool direct, uint64_t offset, std::span<const ConstHostSpan> bytes);
  absl::Status Failed(int error_number, std::string_view operation) const;

  std::string path_;  // "" once renamed
  const UniqueFd fd_;
  UniqueFd direct_fd_;
  std::atomic<bool> use_direct_ = false;
  PackedHeader header_;
  const uint64_t manifest_bytes_max_;
  std::atomic<uint64_t> written_ = 0;
};

// Removes the partial files of dead writers from the folder.
void RemoveAbandonedPartials(const std::string& directory);

}  // namespace tensorcast
