// The sources of one ingest: asks the provider for them, adds them, and removes those that were given up.
//
// A source that gives nothing for long is overtaken where another gives its chunks (chunk_picker), and
// reported to the provider at the end. Where none of the sources in use gives anything the provider is asked
// for a better one; until there is one, a slow source is as good as any.
//
// A source may fill yet (ChunkSource::availability). When no source has a chunk that is missing, and nothing
// is under way, the ingest waits; when that lasts too long (missing_chunk_stall), all of them are given up
// and the provider is asked.
//
// Used by the thread in control alone, but for what is guarded by the ingest's mutex.
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
  // `on_asked` is called each time that the provider has answered. Pointers must outlive it.
  IngestControl(IngestState* state, const ChunkPaths* paths, std::function<void()> on_asked)
      : state_(state), paths_(paths), on_asked_(std::move(on_asked)) {}

  // These five REQUIRE the state's mutex.
  // What is to be done now, without the lock; null: nothing.
  using Step = std::function<void()>;
  Step RetireStep();
  Step NextStep(SteadyTime now);
  // When there may be something to do by time alone.
  SteadyTime NextTime() const;
  // There is one source, and no more are to be expected.
  bool IsAlone() const;
  // The sources together give nothing; the provider will be told.
  void NoteStall();

  // For the end, when nothing is under way: the sources that are left go.
  struct Left {
    std::vector<SourceChange> changes;
    std::vector<SourceFailure> untold;  // sources given up, of which the provider does not know yet
  };
  Left End();

 private:
  // `unneeded`: ends the question; null: a source is needed.
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
  bool tell_stall_ ABSL_GUARDED_BY(state_->mutex) = false;  // the provider
};

}  // namespace tensorcast
