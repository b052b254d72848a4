// The request for an ingest: the artifact to bring, its location and its sources. A value; callers fill it
// in, and the ingest keeps it until its end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class Advance;  // core/ingest/advance.h

struct IngestRequest {
  // The manifest of a known artifact: each chunk is compared with its digest. Null: a first ingest, which
  // computes the digests of a new artifact with new_layout, new_metadata and new_kind.
  std::shared_ptr<const Manifest> manifest;
  Location location;
  // Asked only for chunks that no other replica of this node can give. A first ingest needs a provider. For a
  // known artifact, null means that only this node's replicas are used.
  std::shared_ptr<SourceProvider> sources;
  bool wait_for_space = false;  // wait until the deadline for leases to end, instead of failing
  ImageLayout new_layout;       // with no manifest, like the next two
  std::map<std::string, std::string> new_metadata;
  ArtifactKind new_kind = ArtifactKind::kTensors;
  // For a new artifact; may be null. Called at most once, on a thread of the engine, with the id of the
  // content: before the replica is ready, or before an existing replica of the same content is used instead.
  // May block.
  std::function<void(const std::string& artifact_id)> on_identified;
  // Only for a known artifact and host memory: bring only these chunks, ascending. The result is a partial
  // replica, unless these are all chunks. Not set: all chunks.
  std::optional<std::vector<uint32_t>> chunks = {};
  // Only for a whole known artifact and host memory: write it over a replica of an earlier version. Null:
  // write it to new memory.
  std::shared_ptr<Advance> advance = nullptr;

  const ImageLayout& layout() const { return manifest != nullptr ? manifest->layout() : new_layout; }
  // Empty for a new artifact: its id is known once all of it was read.
  std::string artifact_id() const { return manifest != nullptr ? manifest->id() : std::string(); }
  // The size of the image, or of the wanted chunks.
  uint64_t bytes() const {
    if (!chunks.has_value()) return layout().image_bytes;
    uint64_t bytes = 0;
    for (const uint32_t chunk : *chunks) bytes += layout().chunk(chunk).bytes;
    return bytes;
  }
  // Whether this request brings all chunks that `other` wants. REQUIRES: both name the same artifact.
  bool Includes(const IngestRequest& other) const {
    return !chunks.has_value() || (other.chunks.has_value() && std::ranges::includes(*chunks, *other.chunks));
  }
  // For messages.
  std::string subject() const { return manifest != nullptr ? manifest->id() : "a new artifact"; }
};

}  // namespace tensorcast
