// The request for an ingest: the artifact, the location of the new replica, and its sources. A value type;
// the ingest keeps the request until the ingest ends.
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
  // The manifest of a known artifact: the ingest compares each chunk with its digest. Null: a first ingest,
  // which computes the digests of a new artifact. The new artifact has new_layout, new_metadata and new_kind.
  std::shared_ptr<const Manifest> manifest;
  Location location;
  // Gives sources for chunks that no other replica of this node has. Must be set for a first ingest. May be
  // null for a known artifact: the ingest then uses only this node's replicas.
  std::shared_ptr<SourceProvider> sources;
  bool wait_for_space = false;  // if space is short, also wait for leases to end, up to the deadline
  ImageLayout new_layout;       // this and the next two: only for a first ingest
  std::map<std::string, std::string> new_metadata;
  ArtifactKind new_kind = ArtifactKind::kTensors;
  // For a first ingest; may be null. Called at most once, on a thread of the engine, with the id of the new
  // artifact. The call comes before the new replica is ready, or before the ingest uses an existing replica
  // of the artifact. May block.
  std::function<void(const std::string& artifact_id)> on_identified;
  // Only for a known artifact in host memory: the chunks to bring, ascending. Not set: all chunks. The result
  // is a partial replica if chunks of the image are then still missing.
  std::optional<std::vector<uint32_t>> chunks = {};
  // Only for all chunks of a known artifact in host memory or on a GPU: writes the image over a replica of an
  // earlier version. Null: the image gets new memory.
  std::shared_ptr<Advance> advance = nullptr;

  const ImageLayout& layout() const { return manifest != nullptr ? manifest->layout() : new_layout; }
  // Empty for a first ingest, which computes the id at its end.
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
