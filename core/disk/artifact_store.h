// The disk tier: a folder with one packed file for each artifact (FORMAT.md: header, manifest, page-aligned
// image).
//
// A file appears under its final name only when it is complete: written, synced, renamed. One store at a time
// owns the folder. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/artifact/manifest.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// An open packed file; immutable. It can still be read after the file was removed.
class PackedFile {
 public:
  PackedFile(std::string path, UniqueFd fd, uint64_t image_offset, std::shared_ptr<const Manifest> manifest)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        image_offset_(image_offset),
        manifest_(std::move(manifest)) {}

  const std::shared_ptr<const Manifest>& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  uint64_t image_offset() const { return image_offset_; }  // a multiple of 4096

 private:
  const std::string path_;
  const UniqueFd fd_;
  const uint64_t image_offset_;
  const std::shared_ptr<const Manifest> manifest_;
};

// A packed file that is being written. The destructor removes the file unless Commit has given it its final
// name.
class PackedWriter {
 public:
  virtual ~PackedWriter() = default;
  // Writes a range of the image. Thread-safe for ranges that do not overlap. RESOURCE_EXHAUSTED if the disk
  // is full; OUT_OF_RANGE if the range is not inside the image.
  virtual absl::Status Write(uint64_t image_offset, std::span<const ConstHostSpan> bytes) = 0;
  // Writes the manifest, syncs and renames the file, and syncs the folder. Call it once, after the whole
  // image was written. FAILED_PRECONDITION if the image is incomplete; INVALID_ARGUMENT if the manifest is
  // too long or has an image of another size. If only the sync of the folder fails, returns that error, but
  // the file keeps its name and is listed.
  virtual absl::StatusOr<std::shared_ptr<PackedFile>> Commit(std::shared_ptr<const Manifest> manifest) = 0;
};

struct DiskUsage {
  uint64_t used_bytes = 0;  // total length of the packed files
  uint64_t free_bytes = 0;  // free on their file system
};

// A damaged packed file. The file stays on disk until the same artifact is written again or removed.
struct DamagedFile {
  std::string path;
  std::string artifact_id;
  absl::Status error;
};

class ArtifactStore {
 public:
  // Makes the folder if it is missing, locks it, and removes the files of dead writers. FAILED_PRECONDITION
  // while another store has the lock.
  static absl::StatusOr<std::shared_ptr<ArtifactStore>> Open(const std::string& directory);
  virtual ~ArtifactStore() = default;

  // The artifacts on disk: those found at Open and those written since. Files that cannot be read as packed
  // files are logged and left in the folder.
  virtual std::vector<std::shared_ptr<PackedFile>> List() const = 0;
  // NOT_FOUND for an unknown artifact, and for a file that is known to be damaged. FAILED_PRECONDITION if
  // another process removed or replaced the file; UNAVAILABLE if the file system does not answer.
  virtual absl::StatusOr<std::shared_ptr<PackedFile>> Find(std::string_view artifact_id) const = 0;

  virtual DiskUsage Usage() const = 0;

  // The damaged files found at Open and those reported since.
  virtual std::vector<DamagedFile> Damaged() const = 0;
  // Records that the artifact's file has wrong bytes.
  virtual void NoteDamaged(std::string_view artifact_id, const absl::Status& error) = 0;

  // Begins to write a packed file. `manifest_bytes_max` is the max size of the manifest for Commit, because
  // the image begins behind the manifest.
  virtual absl::StatusOr<std::unique_ptr<PackedWriter>> Create(const ImageLayout& layout,
                                                               uint64_t manifest_bytes_max) = 0;
  // Removes the artifact's file and its entry, even if the file is damaged.
  virtual absl::Status Remove(std::string_view artifact_id) = 0;
  // Closes the artifact's file if another process removed or replaced the file. Closing frees the file's
  // space. A new file with the same name is not removed.
  virtual void CloseLost(std::string_view artifact_id) = 0;
  // Forgets the damaged files that another process removed.
  virtual void ForgetRemovedDamage() = 0;
};

}  // namespace tensorcast
