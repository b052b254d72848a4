// An artifact's manifest and its canonical bytes (FORMAT.md). The id of an artifact is the SHA-256 of those
// bytes, so every field of a manifest is part of the artifact's identity.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast {

struct ManifestFields;

// What an artifact is. The numbers are part of the manifest's bytes.
enum class ArtifactKind : uint8_t { kTensors = 0, kFiles = 1, kDifference = 2 };
// "tensors", "files", "difference"; "" for another number.
std::string_view ArtifactKindName(ArtifactKind kind);

// A file of an artifact of kind kFiles is a tensor: its path below the folder is the name, and its bytes are
// of dtype U8 and shape [bytes]. An artifact of kind kDifference has the tensors "index" and "records" of
// bytes, and its metadata are the artifact ids "base" and "target" (core/difference).
// Immutable once made; share it as shared_ptr<const Manifest>.
class Manifest {
 public:
  // INVALID_ARGUMENT when the layout is not valid, a chunk lacks one of its two digests, metadata is not
  // UTF-8, or layout and metadata are not those of files or of a difference where `kind` says so.
  static absl::StatusOr<std::shared_ptr<const Manifest>> Create(ImageLayout layout,
                                                                std::vector<ChunkDigests> digests,
                                                                std::map<std::string, std::string> metadata,
                                                                ArtifactKind kind = ArtifactKind::kTensors);

  // INVALID_ARGUMENT unless `bytes` are exactly canonical bytes of a manifest; never crashes and never
  // allocates more than a small multiple of `bytes`.
  static absl::StatusOr<std::shared_ptr<const Manifest>> Decode(std::string_view bytes);

  ArtifactKind kind() const { return kind_; }
  const ImageLayout& layout() const { return layout_; }
  const std::vector<ChunkDigests>& digests() const { return digests_; }  // one a chunk, both of each
  // The user's, e.g. "format".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& bytes() const { return bytes_; }  // canonical encoding
  const std::string& id() const { return id_; }        // "tc2:..."

  // nullptr when there is no tensor of that name.
  const Tensor* Find(std::string_view name) const;
  // SHA-256, 32 bytes, over names, dtypes and shapes in the order of names: equal for two artifacts with
  // tensors that differ in nothing but bytes and order.
  std::string DigestOfTensors() const;

 private:
  Manifest() = default;
  static std::shared_ptr<const Manifest> Make(ManifestFields fields, std::string bytes);

  ArtifactKind kind_ = ArtifactKind::kTensors;
  ImageLayout layout_;
  std::vector<ChunkDigests> digests_;
  std::map<std::string, std::string> metadata_;
  std::string bytes_;
  std::string id_;
  std::vector<uint32_t> by_name_;  // tensor indices, sorted by name
};

// Whether the text is a path below a folder: UTF-8 without control characters, of parts that are neither
// empty nor "." nor "..", each of at most 255 bytes, and of at most 4095 bytes in all.
bool IsPathBelow(std::string_view path);

// INVALID_ARGUMENT unless the tensors are files: each name is a path below a folder (IsPathBelow) and not a
// folder of another, the names ascend byte by byte, and each dtype is U8 with one dimension.
absl::Status CheckFileLayout(const ImageLayout& layout);

// "tc2:" and 52 characters of lower-case base32 (RFC 4648, no padding) over SHA-256 of the canonical bytes.
std::string ArtifactId(std::string_view canonical_manifest);
bool IsArtifactId(std::string_view text);
// Whether `text` begins as an artifact id does. No key may, so that a key is never taken for an id.
bool BeginsAsArtifactId(std::string_view text);
// From now on this process takes manifests of any chunk size, so that a small image has many chunks.
void AllowAnyChunkSizeForTests();

}  // namespace tensorcast
