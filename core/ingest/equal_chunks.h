// Gives an ingest equal chunks of other artifacts in this node's host memory. A get of a fine-tuned model
// then copies the chunks that it shares with its base model, and pulls only the rest.
//
// Two chunks are equal if both digests are equal, even if the chunks are at different places in the two
// images. Chunks begin at fixed offsets: if a tensor grows, the bytes behind it shift, and few of the later
// chunks are equal.
//
// The provider uses only ready, verified replicas, and leases them until their last chunk is placed. Their
// bytes are compared with the wanted manifest, like the bytes of any source. A replica with wrong bytes is
// withdrawn.
//
// The look-up compares at most 256 digests, and uses at most 60 bytes of memory, for each wanted chunk. Each
// source uses 4 bytes for each chunk of the artifact.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/ingest/provider_chain.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct EqualChunksOptions {
  ReplicaTable* table = nullptr;  // outlives the provider and its sources
  std::shared_ptr<const Manifest> manifest;
  std::optional<std::vector<uint32_t>> chunks;  // the wanted chunks, ascending; not set: all
  int copy_threads = 1;
};

class EqualChunks final : public NodeProvider {
 public:
  explicit EqualChunks(EqualChunksOptions options) : options_(std::move(options)) {}

  Given Next(const RequestContext& context) override;
  void Ended(const SourceFailure& failure) override;

 private:
  const EqualChunksOptions options_;
  std::set<std::string> tried_;  // replica ids
};

}  // namespace tensorcast
