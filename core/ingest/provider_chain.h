// Where one ingest gets its sources from: the providers of this node in order, then what the caller provides.
//
// A provider of this node is asked while no source of it is in use. Sources that have every chunk, or will
// have, are used alone, for as long as their provider says: nothing is faster than memory, but a peer may be
// than a disk. Beside sources that have only some chunks, the next provider is asked at once. No provider is
// asked again after a later one was. All that are in use give chunks at once, each as fast as it is
// (chunk_picker.h).
//
// A new kind of source on this node is a NodeProvider of its own, which ingest_runner adds.
//
// One thread at a time.
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
    std::vector<std::unique_ptr<ChunkSource>> sources;  // of replicas with their ids; empty: there are none
    bool whole = false;                                 // together they have every chunk, or will have
    // How long those with every chunk are used alone.
    absl::Duration alone = absl::InfiniteDuration();
  };

  virtual ~NodeProvider() = default;
  // May block for a moment.
  virtual Given Next(const RequestContext& context) = 0;
  // A source that it gave was given up.
  virtual void Ended(const SourceFailure& /*failure*/) {}
  // As in SourceProvider.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
};

class ProviderChain final : public SourceProvider {
 public:
  // `subject`: the artifact, for messages. `others` may be null: then only this node is asked.
  ProviderChain(std::string subject, SourceProvider* others)
      : subject_(std::move(subject)), others_(others) {}
  // Before the first call of Next.
  void Add(std::unique_ptr<NodeProvider> provider) { links_.push_back({std::move(provider)}); }

  void ObserveWaits(const WaitObserver& observer) override;
  void NoteReceived(uint64_t bytes) override;
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override;
  bool NoteStall() override { return others_ != nullptr && others_->NoteStall(); }
  std::vector<SourceFailure> TakeUnopened() override;
  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override;

 private:
  struct Link {
    std::unique_ptr<NodeProvider> provider;
    std::set<std::string> in_use;  // ids of the replicas
    bool whole = false;            // they have every chunk
    SteadyTime alone_until;        // then
  };
  // Whether sources of this node that are in use have every chunk.
  bool IsWholeHere() const;
  // Tells the providers of this node what ended of theirs; the rest is of others.
  std::vector<SourceFailure> NoteEnded(std::span<const SourceFailure> ended);

  const std::string subject_;
  SourceProvider* const others_;
  std::vector<Link> links_;
  size_t asked_ = 0;  // the link that is asked next; all of them: the others are
  int others_in_use_ = 0;
};

}  // namespace tensorcast
