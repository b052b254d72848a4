// Gives an ingest equal chunks of other artifacts in this node's host memory. For example, a fine-tuned model
// shares chunks with its base model.
//
// Two chunks are equal if both digests are equal. Their places in the images do not matter.
//
// The provider uses only ready replicas that have no unverified chunk. The provider leases a replica until
// the last chunk from that replica is placed. A replica with wrong bytes is withdrawn.
//
// For each wanted chunk, the look-up compares at most 256 digests and uses at most 60 bytes of memory. Each
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
