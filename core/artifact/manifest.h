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
#include "core/artifact/artifact_id.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast {

struct ManifestFields;

// The kind of an artifact. The numbers are part of the manifest's bytes.
enum class ArtifactKind : uint8_t { kTensors = 0, kFiles = 1, kDifference = 2 };
// "tensors", "files", "difference"; "" for another number.
std::string_view ArtifactKindName(ArtifactKind kind);

// A manifest. Immutable, so it is thread-safe; share it as shared_ptr<const Manifest>.
//
// In an artifact of kind kFiles each file is a tensor of dtype U8 and shape [bytes]; the tensor's name is the
// file's path below the folder. An artifact of kind kDifference (core/difference) has the tensors "index" and
// "records" of dtype U8 and one dimension. Its metadata has exactly the keys "base" and "target"; the
// values are two different artifact ids.
class Manifest {
 public:
  // INVALID_ARGUMENT when the layout is not valid, a chunk lacks one of its two digests, metadata is not
  // UTF-8, or layout and metadata do not fit `kind`.
  static absl::StatusOr<std::shared_ptr<const Manifest>> Create(ImageLayout layout,
                                                                std::vector<ChunkDigests> digests,
                                                                std::map<std::string, std::string> metadata,
                                                                ArtifactKind kind = ArtifactKind::kTensors);

  // INVALID_ARGUMENT unless `bytes` are exactly the canonical bytes of a manifest. Safe for any bytes: never
  // crashes, and allocates at most a small multiple of bytes.size().
  static absl::StatusOr<std::shared_ptr<const Manifest>> Decode(std::string_view bytes);

  ArtifactKind kind() const { return kind_; }
  const ImageLayout& layout() const { return layout_; }
  const std::vector<ChunkDigests>& digests() const { return digests_; }  // one for each chunk, with BLAKE3
  // The user's metadata, such as "format".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& bytes() const { return bytes_; }  // canonical encoding
  const std::string& id() const { return id_; }        // "tc2:..."

  // nullptr when there is no tensor of that name.
  const Tensor* Find(std::string_view name) const;
  // The 32 bytes of SHA-256 over names, dtypes and shapes in the order of names. Two artifacts have the same
  // digest if their tensors differ only in bytes and order.
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

// Whether the text is a path below a folder: at most 4095 bytes of UTF-8 without control characters. Each
// part between slashes has at most 255 bytes and is not empty, "." or "..".
bool IsPathBelow(std::string_view path);

// INVALID_ARGUMENT unless the tensors are files. Each name must be a path below a folder (IsPathBelow). No
// name may be a folder in the path of another name. The names must ascend byte by byte. Each tensor must have
// dtype U8 and one dimension.
absl::Status CheckFileLayout(const ImageLayout& layout);

// After this call the process accepts manifests of any chunk size, so that small images can have many chunks.
void AllowAnyChunkSizeForTests();

}  // namespace tensorcast
