#include "core/artifact/manifest.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "core/artifact/manifest_codec.h"

namespace tensorcast {

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Create(
    ImageLayout layout, std::vector<Digest> digests, std::map<std::string, std::string> metadata) {
  ManifestFields fields{std::move(layout), std::move(digests), std::move(metadata)};
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeManifest(fields));
  return Make(std::move(fields), std::move(bytes));
}

absl::StatusOr<std::shared_ptr<const Manifest>> Manifest::Decode(std::string_view bytes) {
  TC_ASSIGN_OR_RETURN(ManifestFields fields, DecodeManifest(bytes));
  return Make(std::move(fields), std::string(bytes));
}

std::shared_ptr<const Manifest> Manifest::Make(ManifestFields fields, std::string bytes) {
  std::shared_ptr<Manifest> manifest(new Manifest());
  manifest->layout_ = std::move(fields.layout);
  manifest->digests_ = std::move(fields.digests);
  manifest->metadata_ = std::move(fields.metadata);
  manifest->id_ = ArtifactId(bytes);
  manifest->bytes_ = std::move(bytes);
  manifest->by_name_.resize(manifest->layout_.tensors.size());
  std::iota(manifest->by_name_.begin(), manifest->by_name_.end(), 0u);
  std::sort(manifest->by_name_.begin(), manifest->by_name_.end(),
            [&tensors = manifest->layout_.tensors](uint32_t a, uint32_t b) {
              return tensors[a].name < tensors[b].name;
            });
  return manifest;
}

const Tensor* Manifest::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return layout_.tensors[index].name < wanted; });
  if (found == by_name_.end() || layout_.tensors[*found].name != name) {
    return nullptr;
  }
  return &layout_.tensors[*found];
}

}  // namespace tensorcast
