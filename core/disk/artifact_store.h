// The disk tier: a folder with one packed file for each artifact (FORMAT.md: header, manifest, page-aligned
// image).
//
// A file appears under its final name only when it is complete: written, synced, renamed. Thread-safe.
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

// An open packed file; immutable. Safe to read after the file was removed.
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

// A packed file being written. Destroying it uncommitted removes what was written.
class PackedWriter {
 public:
  virtual ~PackedWriter() = default;
  // Writes a range of the image. Thread-safe for ranges that do not overlap. RESOURCE_EXHAUSTED when the disk
  // is full.
  virtual absl::Status Write(uint64_t image_offset, std::span<const ConstHostSpan> bytes) = 0;
  // Writes the manifest, syncs, renames, syncs the folder. REQUIRES: the whole image was written.
  virtual absl::StatusOr<std::shared_ptr<PackedFile>> Commit(std::shared_ptr<const Manifest> manifest) = 0;
};

struct DiskUsage {
  uint64_t used_bytes = 0;  // total length of the packed files
  uint64_t free_bytes = 0;  // of their file system
};

// A damaged packed file. It stays, so that people can examine it, until the same artifact is written again or
// removed.
struct DamagedFile {
  std::string path;
  std::string artifact_id;
  absl::Status error;
};

class ArtifactStore {
 public:
  // Creates the folder if need be and removes what unfinished writers left behind. The folder is locked from
  // then on: FAILED_PRECONDITION while another store has it.
  static absl::StatusOr<std::shared_ptr<ArtifactStore>> Open(const std::string& directory);
  virtual ~ArtifactStore() = default;

  // The artifacts on disk, found at Open and since. Files that are not readable as packed files are logged
  // and left.
  virtual std::vector<std::shared_ptr<PackedFile>> List() const = 0;
  // NOT_FOUND also for a file that is known to be damaged. FAILED_PRECONDITION when the file was removed, or
  // replaced, by another process; UNAVAILABLE when its folder does not answer.
  virtual absl::StatusOr<std::shared_ptr<PackedFile>> Find(std::string_view artifact_id) const = 0;

  virtual DiskUsage Usage() const = 0;

  // The damaged files found at Open and those reported since.
  virtual std::vector<DamagedFile> Damaged() const = 0;
  // Reports that the artifact's file was read and is wrong.
  virtual void NoteDamaged(std::string_view artifact_id, const absl::Status& error) = 0;

  // `manifest_bytes_max` bounds the manifest that Commit will be given, since the image begins behind it.
  virtual absl::StatusOr<std::unique_ptr<PackedWriter>> Create(const ImageLayout& layout,
                                                               uint64_t manifest_bytes_max) = 0;
  // Removes the artifact's file and its entry, also if the file is damaged.
  virtual absl::Status Remove(std::string_view artifact_id) = 0;
  // Closes the artifact's file if another process removed or replaced it, which frees its space. A file that
  // is now under its name stays.
  virtual void CloseLost(std::string_view artifact_id) = 0;
  // Forgets the damaged files that another process removed.
  virtual void ForgetRemovedDamage() = 0;
};

}  // namespace tensorcast
