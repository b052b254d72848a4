// The providers of the sources of one ingest: first the providers of this node in order, then the caller's
// provider.
//
// The chain asks a provider of this node while no source of that provider is in use. The sources that the
// provider gave decide when the chain asks the next provider:
//   every chunk, now or later   after the time Given::alone, which is longer for faster sources
//   only some chunks            at once
// After a later provider was asked, an earlier provider is not asked again. A chain without a caller's
// provider is an exception: it begins again after its last provider.
//
// To add a new kind of source on this node, write a NodeProvider and add it in ingest_runner.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class NodeProvider {
 public:
  struct Given {
    std::vector<std::unique_ptr<ChunkSource>> sources;  // SourceInfo::replica_id is set; may be empty
    bool whole = false;                                 // all of them together have or will have every chunk
    // If `whole`: the time for which the next provider is not asked.
    absl::Duration alone = absl::InfiniteDuration();
  };

  virtual ~NodeProvider() = default;
  // Opens sources. May block briefly.
  virtual Given Next(const RequestContext& context) = 0;
  // Called when a source of this provider was given up.
  virtual void Ended(const SourceFailure& /*failure*/) {}
  // As in SourceProvider.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
};

class ProviderChain final : public SourceProvider {
 public:
  // `subject` names the artifact in messages. `others` is the caller's provider and must outlive this object;
  // it may be null.
  ProviderChain(std::string subject, SourceProvider* others)
      : subject_(std::move(subject)), others_(others) {}
  // Adds the next provider of this node. Call it before the first Next.
  void Add(std::unique_ptr<NodeProvider> provider) { links_.push_back({std::move(provider)}); }

  void ObserveWaits(const WaitObserver& observer) override;
  void NoteFills(const std::string& replica_id) override;
  void NoteReceived(uint64_t bytes) override;
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override;
  bool NoteStall() override { return others_ != nullptr && others_->NoteStall(); }
  std::vector<SourceFailure> TakeUnopened() override;
  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override;

 private:
  struct Link {
    std::unique_ptr<NodeProvider> provider;
    std::set<std::string> in_use;  // ids of the replicas that its sources read
    bool whole = false;            // these sources have every chunk
    SteadyTime alone_until;        // if `whole`: the next provider is not asked before this time
  };
  // Whether sources of this node that are in use have every chunk.
  bool IsWholeHere() const;
  // Tells this node's providers which of their sources ended. Returns the failures of the other sources.
  std::vector<SourceFailure> NoteEnded(std::span<const SourceFailure> ended);

  const std::string subject_;
  SourceProvider* const others_;
  std::vector<Link> links_;
  size_t asked_ = 0;  // index of the link that is asked next; links_.size(): `others_` is asked
  int others_in_use_ = 0;
};

}  // namespace tensorcast
