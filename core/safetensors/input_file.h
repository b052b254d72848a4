// Opening the files that a model is read from. For this folder's own use. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/disk/disk_source.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {

// A regular file, open for reading. Movable; closes its descriptor.
class InputFile {
 public:
  // NOT_FOUND when there is none, INVALID_ARGUMENT when it is not a regular file.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const FileIdentity& identity() const { return identity_; }

  // Exactly these bytes. DATA_LOSS when the file ends before them: it shrank since it was opened.
  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t bytes) const;

 private:
  InputFile(int fd, FileIdentity identity) : fd_(fd), identity_(std::move(identity)) {}

  int fd_ = -1;
  FileIdentity identity_;
};

// Reads and parses the header of an open safetensors file; messages do not repeat the file's name.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const InputFile& file);

}  // namespace tensorcast
