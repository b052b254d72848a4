#include "core/ingest/chunk_flow.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"

namespace tensorcast {
namespace {

using Next = PathStep::Next;

// A source is given up after so many refusals in a row of chunks that it claims to have.
constexpr int kMaxRefusals = 16;

}  // namespace

ChunkFlow::ChunkFlow(IngestState* state)
    : state_(state),
      verifier_(state->plan.layout, state->plan.expected, state->plan.distrust_other_hosts),
      paths_(state->plan, &verifier_) {}

// The chunk stays in the account (SourceSet) until Finish, which each way through this class calls once.
FetchPtr ChunkFlow::Take(SteadyTime now, int slots) {
  state_->mutex.AssertHeld();
  const int under_way = state_->sources.under_way();
  // Of the ways in use the highest bound counts: one without buffers can have more chunks under way.
  int max = 0;
  for (const auto& source : state_->sources.sources()) max = std::max(max, source->path->max_chunks());
  if (under_way >= max || !state_->slots.MayTake(slots, under_way)) return nullptr;
  FetchPtr fetch = state_->sources.Take(now);
  if (fetch == nullptr) return nullptr;
  fetch->path = fetch->source->path;
  state_->plan.progress->Took();
  state_->slots.Took(/*any=*/true);
  state_->idle.NoteChunk();
  // The ingest was said to wait: control has to say that it goes on.
  if (!state_->told_waiting.empty()) state_->slots.WakeControl();
  return fetch;
}

// Take told the scheduler that this slot may wait for a buffer, so EndAcquire follows on every way, also
// where no buffer came.
void ChunkFlow::Begin(const FetchPtr& fetch) {
  ChunkRequest& request = fetch->request;
  request.range = state_->plan.layout->chunk(request.chunk);
  request.blake3 = verifier_.WantsBlake3(fetch->source->source->info(), request.chunk);
  fetch->context = state_->plan.context();
  fetch->context.cancellation = fetch->cancellation;
  fetch->start = SteadyNow();
  state_->plan.progress->BeginBufferWait();
  PathStep step = fetch->path->Begin(*fetch);
  if (step.next == Next::kBlocked) {
    // By the host, which never gives kBlocked.
    UseFallback(*fetch, step.status);
    step = fetch->path->Begin(*fetch);
  }
  state_->plan.progress->EndBufferWait();
  if (step.next == Next::kFetch) fetch->start = SteadyNow();  // the wait for a buffer is not its source's
  if (step.next == Next::kNoBuffer) {
    fetch->digests = step.status;
  } else {
    fetch->acquired = true;
    state_->plan.progress->Asked(*fetch->source->clock);
  }
  {
    absl::MutexLock lock(&state_->mutex);
    state_->slots.EndAcquire();
  }
  if (step.next == Next::kFetch) return Fetch(fetch);
  if (step.next == Next::kAwait) return Continue(fetch, std::move(step));
  if (step.next == Next::kFetched) NoteFetched(*fetch);
  Arrived(fetch);
}

void ChunkFlow::Fetch(const FetchPtr& fetch) {
  ChunkSource& source = *fetch->source->source;
  // A source that blocks keeps this slot until its bytes are here or the fetch has failed.
  if (fetch->source->blocks) {
    fetch->digests = source.Fetch(fetch->context, fetch->request);
    NoteFetched(*fetch);
    return Arrived(fetch);
  }
  source.StartFetch(fetch->context, fetch->request,
                    [this, fetch](absl::StatusOr<std::optional<ChunkDigests>> digests) {
                      fetch->digests = std::move(digests);
                      NoteFetched(*fetch);
                      PassOn(fetch);
                    });
  // A source is not to be destroyed while it starts a fetch, though that has ended: the chunk goes on when
  // both are over.
  PassOn(fetch);
}

// For a chunk that was copied or found, this says both that it was requested and that it came.
void ChunkFlow::NoteFetched(ChunkFetch& fetch) {
  fetch.answered = true;
  state_->plan.progress->Answered(*fetch.source->clock);
  if (!fetch.digests.ok()) return;
  // What is read where its source has it was not moved.
  const bool moved = fetch.bytes.empty() || !fetch.buffer.spans.empty();
  fetch.source->clock->Passed(Stage::kFetch, fetch.start, moved ? fetch.request.range.bytes : 0);
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&state_->mutex);
  state_->sources.Fetched(fetch, now);
  if (state_->sources.missing() > 0) state_->slots.NoteMore();  // there is room for another one
}

// On the source's thread, perhaps: it only hands on. Once the lock is given back nothing of this is touched.
// Called twice for each fetch: by `done`, on any thread, and after StartFetch has returned. The second call
// passes the chunk on.
void ChunkFlow::PassOn(const FetchPtr& fetch) {
  absl::MutexLock lock(&state_->mutex);
  if (std::exchange(fetch->completed_once, true)) state_->slots.AddArrived(fetch);
}

void ChunkFlow::Arrived(const FetchPtr& fetch) {
  if (fetch->digests.ok()) return Continue(fetch, fetch->path->Arrived(*fetch));
  // A GPU failed to make the chunk in its place. The source can still make it on the host.
  const bool on_device = fetch->request.device && fetch->source->source->computes_chunks();
  if (on_device && absl::IsInternal(fetch->digests.status())) {
    return Continue(fetch, {PathStep::Next::kBlocked, fetch->digests.status()});
  }
  EndInVain(*fetch);
  Finish(*fetch, /*placed=*/false);
}

void ChunkFlow::AwaitPlace(const FetchPtr& fetch) {
  PathStep step = fetch->path->Await(*fetch);
  if (!fetch->answered) NoteFetched(*fetch);
  {
    absl::MutexLock lock(&state_->mutex);
    state_->slots.EndAwait();
  }
  Continue(fetch, std::move(step));  // wakes the slot that awaits the next one
}

// on_chunk and the progress come before Finish: when the account says that the image is whole, every chunk is
// in the table.
void ChunkFlow::Continue(const FetchPtr& fetch, PathStep step) {
  if (step.next == Next::kAwait) {
    absl::MutexLock lock(&state_->mutex);
    return state_->slots.AddPlacing(fetch);
  }
  const bool placed = step.next == Next::kPlaced;
  if (placed) {
    state_->plan.on_chunk(fetch->request.chunk, fetch->compared);
    state_->plan.progress->AddDone(*fetch->source->clock, fetch->request.range.bytes);
  } else {
    PutBack(*fetch, std::move(step));
  }
  Finish(*fetch, placed);
}

void ChunkFlow::Finish(ChunkFetch& fetch, bool placed) {
  // First, so that a slot that waits for a buffer has it.
  fetch.buffer = ChunkBuffer();
  state_->plan.progress->Ended();
  absl::MutexLock lock(&state_->mutex);
  if (placed) {
    state_->sources.Done(fetch);
    state_->verified += state_->plan.expected != nullptr && fetch.compared ? 1 : 0;
  }
  state_->sources.Remove(fetch);
  if (state_->sources.HasRetired()) state_->slots.WakeControl();
  // There is more to take: what was put back, or with the buffer that is free.
  if (!placed || state_->plan.destination->places()) state_->slots.NoteMore();
  if (state_->IsOver()) state_->slots.NoteChange();
}

// The source keeps its limits (max_fetches, blocks) of the first path: the fallback works with them, too.
void ChunkFlow::UseFallback(ChunkFetch& fetch, const absl::Status& why) {
  absl::MutexLock lock(&state_->mutex);
  SourceInUse& source = *fetch.source;
  // Warned of once: other fetches of this source come here as well.
  LOG_IF(WARNING, source.path == fetch.path)
      << state_->what << ": the chunks of source " << source.source->info().name
      << " go through host memory from now on: " << why;
  fetch.path = source.path = fetch.path->fallback();
}

// kWrong blames the source, which is given up with its other fetches. kFailed is an error of the destination
// or of a first ingest's content, which no other source would mend. kBlocked blames neither yet.
void ChunkFlow::PutBack(ChunkFetch& fetch, PathStep step) {
  if (step.next == Next::kBlocked) UseFallback(fetch, step.status);
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->sources.PutBack(fetch);
    if (step.next == Next::kWrong) {
      fetches = state_->GiveUpSource(*fetch.source, std::move(step.status), /*corrupt=*/true);
      state_->sources.CountLost(fetch);
    } else if (step.next == Next::kFailed) {
      fetches = state_->GiveUp(std::move(step.status));
    }
  }
  CancelAll(fetches);
}

// Its source did not give it. Whether that source is to blame depends on why.
void ChunkFlow::EndInVain(ChunkFetch& fetch) {
  const absl::Status& why = fetch.digests.status();
  SourceInUse& source = *fetch.source;
  // As it is now: a caller with more time may have joined since the chunk was requested.
  const RequestContext context = state_->plan.context();
  const absl::Status wanted = context.Check(state_->what);
  std::vector<Cancellation> fetches;
  bool failed = false;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->sources.PutBack(fetch);
    // What ends the ingest comes first, then what explains this end without the source's fault, and last its
    // fault.
    if (!wanted.ok()) {
      failed = true;
      fetches = state_->GiveUp(wanted);
    } else if (!source.in_use()) {
      // The source is being given up, of which a cancelled fetch is only a part.
      failed = !absl::IsCancelled(why);
      state_->sources.CountLost(fetch);
    } else if (fetch.taken_back && absl::IsCancelled(why)) {
      ++state_->reassigned;
      source.clock->Reassigned();
    } else if (!state_->failed.ok() || IsExcused(fetch, context)) {
      VLOG(2) << state_->what << ": chunk " << fetch.request.chunk << " is requested again: " << why;
    } else if (!fetch.acquired) {
      // No buffer came: no other source would help.
      fetches = state_->GiveUp(why);
    } else {
      failed = true;
      fetches = state_->GiveUpSource(source, why, /*corrupt=*/false);
      state_->sources.CountLost(fetch);
    }
  }
  if (failed && fetch.acquired) source.clock->Failed(Stage::kFetch, fetch.start, why);
  CancelAll(fetches);
}

bool ChunkFlow::IsExcused(ChunkFetch& fetch, const RequestContext& context) {
  const absl::Status& why = fetch.digests.status();
  // A caller with more time joined meanwhile. A source that is late for a reason of its own shows that at
  // the next fetch.
  if (absl::IsDeadlineExceeded(why)) return context.deadline > fetch.context.deadline;
  // It does not have this chunk, and said so.
  const bool refused = absl::IsFailedPrecondition(why) && fetch.source->availability != nullptr;
  return refused && ++fetch.source->refusals <= kMaxRefusals;
}

}  // namespace tensorcast
