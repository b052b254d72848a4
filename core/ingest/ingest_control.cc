#include "core/ingest/ingest_control.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"

namespace tensorcast {
namespace {

// An ingest that waits shorter than this keeps its turn: sources that fill have something new all the time.
constexpr absl::Duration kShortWait = absl::Milliseconds(100);

// The error with which an ingest ends when the provider has no more sources: the provider's reason, and why
// the last source in use was given up.
absl::Status NoSourceLeft(const absl::Status& why, const std::optional<SourceFailure>& before) {
  if (!before.has_value()) return why;
  // Where bytes were found wrong and none are found elsewhere, they are lost; a reason that passes stays what
  // it is.
  const bool lost = before->corrupt && absl::IsNotFound(why);
  const absl::StatusCode code = lost ? absl::StatusCode::kDataLoss : why.code();
  // The error of a provider with one source says what that source failed with.
  if (absl::StrContains(why.message(), before->status.message())) return absl::Status(code, why.message());
  return absl::Status(code, absl::StrCat(why.message(), "; the previous source (", before->source.lane, " ",
                                         before->source.name, ") was given up: ", before->status.message()));
}

SourceLoss LossOf(const SourceFailure& failure, bool opened) {
  return !opened                                    ? SourceLoss::kNotOpened
         : failure.corrupt                          ? SourceLoss::kBadDigest
         : absl::IsDeadlineExceeded(failure.status) ? SourceLoss::kTimeout
                                                    : SourceLoss::kDied;
}

}  // namespace

// The step holds the source until it has run, so the source is destroyed on this thread and without the lock.
IngestControl::Step IngestControl::RetireStep() {
  state_->mutex.AssertHeld();
  const std::shared_ptr<SourceInUse> retired = state_->sources.TakeRetired();
  if (retired == nullptr) return nullptr;
  return [this, retired] { Retire(*retired); };
}

// The steps, from the most urgent:
//
//  1. the ingest began to wait, or goes on: on_wait is told, which gives or takes its turn
//  2. no source is left at all: the provider is asked for one that is needed, and may block
//  3. the availability of a source has ended: with an error, the source is given up
//  4. no source had a missing chunk for too long: all sources are given up
//  5. the sources together give nothing: the provider is told, and may have a better one
//  6. a source was given up, or its time has come: the provider is asked for more, beside those in use
IngestControl::Step IngestControl::NextStep(SteadyTime now) {
  // One step at a time, the urgent ones first; after each of them all is looked at again.
  state_->mutex.AssertHeld();
  const bool waits = now >= state_->idle.since() + kShortWait;
  if (waits == state_->told_waiting.empty()) {
    state_->told_waiting =
        waits ? absl::StrCat("chunks that no source has yet (", state_->sources.NamesInUse(), ")") : "";
    return [this, what = state_->told_waiting] { state_->plan.on_wait(what); };
  }
  if (!state_->failed.ok()) return nullptr;
  if (state_->sources.sources().empty()) return [this] { AskProvider(/*unneeded=*/nullptr); };
  for (const std::unique_ptr<SourceInUse>& source : state_->sources.sources()) {
    if (!source->in_use() || source->availability == nullptr || source->end_seen) continue;
    if (!source->availability->ended()) continue;
    source->end_seen = true;
    return [this, source = source.get()] { LookAtEnd(*source); };
  }
  if (state_->sources.in_use() == 0) return nullptr;  // their fetches are about to end
  if (now >= state_->idle.ends()) return [this] { GiveUpAll(); };
  if (std::exchange(tell_stall_, false)) return [this] { TellStall(); };
  if (!untold_.empty() || now >= ask_again_) {
    // The answer sets the time of the next question.
    ask_again_ = SteadyTime::InfiniteFuture();
    // Control is busy with the provider for a while: a slot minds the time.
    state_->slots.WakeSlot();
    // The end of the ingest cancels this question.
    return [this, unneeded = state_->asking.emplace()] { AskProvider(&unneeded); };
  }
  return nullptr;
}

SteadyTime IngestControl::NextTime() const {
  state_->mutex.AssertHeld();
  const SteadyTime next = std::min(ask_again_, state_->idle.ends());
  return state_->told_waiting.empty() ? std::min(next, state_->idle.since() + kShortWait) : next;
}

bool IngestControl::IsAlone() const {
  state_->mutex.AssertHeld();
  return state_->sources.sources().size() == 1 && ask_again_ == SteadyTime::InfiniteFuture();
}

void IngestControl::NoteStall() {
  state_->mutex.AssertHeld();
  tell_stall_ = true;
  state_->slots.WakeControl();
}

// Runs on the thread in control, without the lock; the slots work meanwhile.
void IngestControl::AskProvider(const Cancellation* unneeded) {
  const IngestPlan& plan = state_->plan;
  RequestContext context = plan.context();
  const bool needed = unneeded == nullptr;
  // A cancellation of its own: it ends the wait for more sources as soon as none is needed.
  if (!needed) context.cancellation = *unneeded;
  uint64_t received = 0;
  {
    absl::MutexLock lock(&state_->mutex);
    received = state_->sources.received_bytes();
  }
  plan.sources->NoteReceived(received);
  absl::StatusOr<MoreSources> more = plan.sources->Next(context, std::exchange(untold_, {}), needed);
  std::vector<SourceFailure> unopened = plan.sources->TakeUnopened();
  CHECK(!needed || !more.ok() || !more->sources.empty()) << "a provider gave no source though one is needed";
  if (more.ok()) {
    for (std::unique_ptr<ChunkSource>& source : more->sources) {
      if (absl::Status fits = CheckAvailability(*source); !fits.ok()) {
        untold_.push_back({.source = source->info(), .status = fits});
        unopened.push_back(untold_.back());
        source.reset();
      } else {
        Add(std::move(source));
      }
    }
  }
  for (const SourceFailure& failure : unopened) plan.progress->AddUnopened(failure.source, failure.status);
  const RequestContext now = plan.context();
  // The provider's error is that of the context where the context ended first; then the ingest says so in its
  // own words, and names no source.
  const absl::Status wanted = now.Check(state_->what);
  {
    absl::MutexLock lock(&state_->mutex);
    state_->asking.reset();
    // A change tells which source came in the lost one's place, so it is told once there is one.
    if (state_->sources.in_use() > 0) {
      for (const SourceFailure& failure : std::exchange(unreplaced_, {})) {
        NoteChange(failure, /*opened=*/true);
      }
      for (const SourceFailure& failure : unopened) NoteChange(failure, /*opened=*/false);
    }
    // A caller with more time may have joined meanwhile.
    const bool late = absl::IsDeadlineExceeded(more.status()) && now.deadline > context.deadline;
    if (more.ok()) {
      ask_again_ = SteadyNow() + std::max(more->look_again, absl::Milliseconds(1));
    } else if (needed && !late) {
      state_->failed.Update(wanted.ok() ? NoSourceLeft(more.status(), last_given_up_) : wanted);
    }
    state_->slots.NoteChange();
  }
  // More sources can keep more slots busy.
  on_asked_();
}

void IngestControl::TellStall() {
  if (!state_->plan.sources->NoteStall()) return;
  absl::MutexLock lock(&state_->mutex);
  ask_again_ = SteadyNow();
}

// What another host announces of its chunks has to fit, whatever it announces.
absl::Status IngestControl::CheckAvailability(const ChunkSource& source) const {
  const std::shared_ptr<const Availability> has = source.availability();
  const ImageLayout& layout = *state_->plan.layout;
  if (has == nullptr || (has->chunks() == layout.chunk_count() && has->chunk_bytes() == layout.chunk_bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "use source ", source.info().lane, " ", source.info().name, ": the source announces ", has->chunks(),
      " chunks of ", has->chunk_bytes(), " bytes, but ", state_->plan.subject, " has ", layout.chunk_count(),
      " chunks of ", layout.chunk_bytes, " bytes; run one release on all nodes"));
}

void IngestControl::Add(std::unique_ptr<ChunkSource> opened) {
  auto source = std::make_unique<SourceInUse>();
  source->max_fetches = std::max(1, opened->max_concurrency());
  source->blocks = opened->blocks();
  source->path = paths_->Choose(*opened);
  source->path->Prepare(*source);
  source->availability = opened->availability();
  const bool filling = source->availability != nullptr && !source->availability->complete();
  source->clock = std::make_shared<StageClock>(opened->info(), filling);
  if (source->availability != nullptr) {
    // Before the source joins, so that no announcement is missed.
    source->watch = source->availability->OnChange([this] {
      absl::MutexLock lock(&state_->mutex);
      state_->slots.NoteChange();
    });
  }
  state_->plan.progress->AddSource(source->clock);
  source->source = std::move(opened);
  absl::MutexLock lock(&state_->mutex);
  state_->sources.Add(std::move(source));
  state_->idle.NoteSources(SteadyNow());  // it may have what was missing
}

void IngestControl::LookAtEnd(SourceInUse& source) {
  const absl::Status end = source.availability->end();
  if (end.ok()) return;  // it has what it has, and stays until that is done
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&state_->mutex);
    fetches = state_->GiveUpSource(source, end, /*corrupt=*/false);
  }
  CancelAll(fetches);
}

// The sources may all wait for each other here. The provider may know one that has the chunks.
void IngestControl::GiveUpAll() {
  absl::MutexLock lock(&state_->mutex);
  // A chunk came after all, between the check and this.
  if (state_->sources.under_way() > 0) return;
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("wait for chunks: ", state_->sources.missing(), " of ", state_->plan.layout->chunk_count(),
                   " chunks are missing, and no source in use (", state_->sources.NamesInUse(),
                   ") had any of the missing chunks for ", absl::FormatDuration(state_->plan.peer_timeout),
                   "; start a node that has these chunks, or import the artifact again"));
  for (const std::unique_ptr<SourceInUse>& source : state_->sources.sources()) {
    if (source->in_use()) (void)state_->GiveUpSource(*source, why, /*corrupt=*/false);  // no fetches
  }
}

// Sources leave in this order: out of the set (under the lock), then the watch and the source itself (their
// end may block or call back), then the report and the provider's list. The provider is told with the next
// question, so it never hears of a source that still exists.
void IngestControl::Retire(SourceInUse& source) {
  // The watch goes before what it watches. No lock is held: the end of a source may block.
  source.watch = Availability::Watch();
  source.source.reset();
  if (source.in_use()) return source.clock->Leave(/*loss=*/std::nullopt, absl::OkStatus(), /*lost_chunks=*/0);
  SourceFailure failure = *std::move(source.failure);
  source.clock->Leave(LossOf(failure, /*opened=*/true), failure.status, failure.chunks);
  LOG(WARNING) << state_->what << ": source " << failure.source.lane << " " << failure.source.name
               << " is given up" << (failure.corrupt ? " as corrupt: " : ": ") << failure.status;
  untold_.push_back(failure);
  last_given_up_ = failure;
  absl::MutexLock lock(&state_->mutex);
  if (state_->sources.in_use() > 0) {
    NoteChange(failure, /*opened=*/true);
  } else {
    unreplaced_.push_back(std::move(failure));
  }
}

void IngestControl::NoteChange(const SourceFailure& failure, bool opened) {
  changes_.push_back({failure.source, state_->sources.AnyInUse()->source->info(), LossOf(failure, opened),
                      failure.status, failure.chunks, SteadyNow()});
}

// All slots have ended. A source that was overtaken is told as a failure only now: until the end it could
// still have given its chunks.
IngestControl::Left IngestControl::End() {
  std::vector<std::unique_ptr<SourceInUse>> left;
  bool waits = false;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->sources.GiveUpOvertaken();
    left = state_->sources.TakeAll();
    waits = !state_->told_waiting.empty();
  }
  if (waits) state_->plan.on_wait("");
  for (const std::unique_ptr<SourceInUse>& source : left) {
    if (source->in_use()) {
      source->clock->Leave(/*loss=*/std::nullopt, absl::OkStatus(), /*lost_chunks=*/0);
    } else {
      source->clock->Leave(SourceLoss::kTimeout, source->failure->status, /*lost_chunks=*/0);
      LOG(WARNING) << state_->what << ": source " << source->failure->source.lane << " "
                   << source->failure->source.name << ": " << source->failure->status;
      untold_.push_back(*source->failure);
    }
  }
  return {std::move(changes_), std::move(untold_)};
}

}  // namespace tensorcast
