// Manages the sources of one ingest: asks the provider for sources, adds them, and removes sources that were
// given up.
//
// If one source stalls, its chunks are requested from other sources (chunk_picker.h). The provider is told of
// the stalled source at the end of the ingest. If all sources stall, the control asks the provider for a
// better source; the slow sources stay in use.
//
// If all sources lack all missing chunks and no fetch is in flight, the ingest waits. If the wait is too long
// (missing_chunk_stall.h), the control gives up all sources and asks the provider for other sources.
//
// Used only on the control thread (IngestPipeline::Run). Slots may call only NextTime, IsAlone and NoteStall,
// under the ingest's mutex.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/ingest/chunk_path.h"
#include "core/ingest/ingest_state.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class IngestControl {
 public:
  // `on_asked` is called after each answer of the provider. The pointers must outlive this object.
  IngestControl(IngestState* state, const ChunkPaths* paths, std::function<void()> on_asked)
      : state_(state), paths_(paths), on_asked_(std::move(on_asked)) {}

  // A Step is work that the caller runs without the lock; null if there is nothing to do. RetireStep,
  // NextStep, NextTime, IsAlone and NoteStall REQUIRE that the caller holds the state's mutex.
  using Step = std::function<void()>;
  // Destroys a source that is no longer used.
  Step RetireStep();
  // The most urgent step other than RetireStep.
  Step NextStep(SteadyTime now);
  // The time at which to call NextStep again even if no event happens.
  SteadyTime NextTime() const;
  // Whether there is only one source, and the provider will give no more.
  bool IsAlone() const;
  // Notes that all sources together deliver nothing; a later step tells the provider.
  void NoteStall();

  // The end of the ingest: removes the remaining sources. REQUIRES: no fetch is in flight.
  struct Left {
    std::vector<SourceChange> changes;
    std::vector<SourceFailure> untold;  // sources that were given up and not yet reported to the provider
  };
  Left End();

 private:
  // `unneeded` cancels the call when the ingest no longer needs another source. Null: no source is in use, so
  // the ingest needs one.
  void AskProvider(const Cancellation* unneeded);
  void TellStall();
  absl::Status CheckAvailability(const ChunkSource& source) const;
  void Add(std::unique_ptr<ChunkSource> opened);
  void LookAtEnd(SourceInUse& source);
  void GiveUpAll();
  void Retire(SourceInUse& source);
  // REQUIRES: a source is in use.
  void NoteChange(const SourceFailure& failure, bool opened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex);

  IngestState* const state_;
  const ChunkPaths* const paths_;
  const std::function<void()> on_asked_;
  std::vector<SourceChange> changes_;
  std::vector<SourceFailure> untold_;      // as in Left
  std::vector<SourceFailure> unreplaced_;  // given up when no other source was in use
  std::optional<SourceFailure> last_given_up_;
  SteadyTime ask_again_ ABSL_GUARDED_BY(state_->mutex) = SteadyTime::InfiniteFuture();
  bool tell_stall_ ABSL_GUARDED_BY(state_->mutex) = false;  // TellStall must be called
};

}  // namespace tensorcast
