// What an ingest makes: which artifact, where, and from what. A value; callers fill it in, and the ingest
// keeps it to its end.
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
  // Of a known artifact: each chunk is compared with its digest. Null: a first ingest, which computes the
  // digests of a new artifact with this layout, metadata and kind.
  std::shared_ptr<const Manifest> manifest;
  Location location;
  // Asked only for what no other replica of this node can give. A first ingest needs one; for a known
  // artifact null means that only this node is asked.
  std::shared_ptr<SourceProvider> sources;
  bool wait_for_space = false;  // wait for leases to end, to the deadline, instead of failing
  ImageLayout new_layout;       // with no manifest, like the next two
  std::map<std::string, std::string> new_metadata;
  ArtifactKind new_kind = ArtifactKind::kTensors;
  // For a new artifact; may be null. Called at most once, on a thread of the engine, with the id that the
  // content turned out to have: before its replica is ready, or another of the same content is taken for it.
  // May block.
  std::function<void(const std::string& artifact_id)> on_identified;
  // Of a known artifact, to host memory: just these chunks, ascending. What it makes is a partial replica,
  // unless that is all. Not set: all of them.
  std::optional<std::vector<uint32_t>> chunks = {};
  // Of a whole known artifact, to host memory: written over a replica of an earlier version. Null: beside it.
  std::shared_ptr<Advance> advance = nullptr;

  const ImageLayout& layout() const { return manifest != nullptr ? manifest->layout() : new_layout; }
  // Empty for a new artifact: its id is known once all of it was read.
  std::string artifact_id() const { return manifest != nullptr ? manifest->id() : std::string(); }
  // Of the image, or of the chunks that are wanted.
  uint64_t bytes() const {
    if (!chunks.has_value()) return layout().image_bytes;
    uint64_t bytes = 0;
    for (const uint32_t chunk : *chunks) bytes += layout().chunk(chunk).bytes;
    return bytes;
  }
  // Whether all that `other`, of the same artifact, wants is wanted here.
  bool Includes(const IngestRequest& other) const {
    return !chunks.has_value() || (other.chunks.has_value() && std::ranges::includes(*chunks, *other.chunks));
  }
  // For messages.
  std::string subject() const { return manifest != nullptr ? manifest->id() : "a new artifact"; }
};

}  // namespace tensorcast
