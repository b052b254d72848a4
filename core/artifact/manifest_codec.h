// The manifest's canonical bytes: encoder and decoder (FORMAT.md). For this folder's own use; others go
// through Manifest. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast {

struct ManifestFields {
  ImageLayout layout;
  std::vector<Digest> digests;
  std::map<std::string, std::string> metadata;
};

// INVALID_ARGUMENT for fields that a manifest can't have; whatever is encoded decodes to the same fields.
absl::StatusOr<std::string> EncodeManifest(const ManifestFields& fields);

// INVALID_ARGUMENT, with the offset of the offending field, for anything but the encoding of valid fields.
absl::StatusOr<ManifestFields> DecodeManifest(std::string_view bytes);

}  // namespace tensorcast
