// Chunks of an artifact that other artifacts have in this node's host memory: a fine-tuned model copies what
// its base has too, and pulls the rest.
//
// Chunks are equal where both digests are, at whatever place of the two images. Since chunks are cut at fixed
// places, a tensor that grows shifts what lies behind it, and little of that is equal then.
//
// The replicas that it reads are ready and verified, and leased until their last chunk is in its place. Their
// bytes are compared with the wanted manifest, as those of any source; a replica with wrong ones is
// withdrawn.
//
// The look-up costs 256 compared digests at most for each wanted chunk. It takes 60 bytes a wanted
// chunk at most while it lasts, and each source 4 bytes a chunk of the artifact.
//
// One thread at a time.
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
  std::optional<std::vector<uint32_t>> chunks;  // that are wanted, ascending; not set: all
  int copy_threads = 1;
};

class EqualChunks final : public NodeProvider {
 public:
  explicit EqualChunks(EqualChunksOptions options) : options_(std::move(options)) {}

  Given Next(const RequestContext& context) override;
  void Ended(const SourceFailure& failure) override;

 private:
  const EqualChunksOptions options_;
  std::set<std::string> tried_;  // replicas
};

}  // namespace tensorcast
