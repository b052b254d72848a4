// Reading the files that a model consists of. For this folder's own use. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/disk/disk_source.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast {

// Exactly these bytes. DATA_LOSS when the file ends before them: it shrank since it was opened.
absl::StatusOr<std::string> ReadBytes(const OpenedFile& file, uint64_t offset, uint64_t bytes);

// Reads and parses the header of a safetensors file; messages do not repeat the file's name.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const OpenedFile& file);

}  // namespace tensorcast
